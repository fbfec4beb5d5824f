"""Pictures of plans, with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._plan import Plan

#: Points beyond which only some are drawn.
_MOST_POINTS = 20_000


def plot(plan: Plan, ax: Any = None) -> Any:
    """The points and the bounding boxes of the leaves, seen along the third axis."""
    import matplotlib.pyplot as plt
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    if ax is None:
        ax = plt.figure().add_subplot()
    points = plan._sources[:: 1 + len(plan._sources) // _MOST_POINTS]
    ax.plot(points[:, 0], points[:, 1], ",", color="0.5")
    frames = [Rectangle((low[0], low[1]), *(high - low)[:2]) for low, high in plan.boxes()]
    ax.add_collection(PatchCollection(frames, facecolor="none", edgecolor="C0", linewidth=0.5))
    ax.set_aspect("equal")
    ax.set_title(f"{plan.kernel.name}, {plan.n_sources} sources, {len(frames)} leaves")
    return ax
