"""Pictures of plans, with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._plan import Plan

#: Points beyond which only some are drawn.
_MOST_POINTS = 20_000


def plot(plan: Plan, ax: Any = None, near: int | None = None) -> Any:
    """The points and the bounding boxes of the leaves, seen along the third axis; the leaf of the target ``near`` and its
    list of sources for direct sums in colour."""
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    if ax is None:
        ax = plt.figure().add_subplot()
    points = plan._sources[:: 1 + len(plan._sources) // _MOST_POINTS]
    ax.plot(points[:, 0], points[:, 1], ",", color="0.5")
    frames = [Rectangle((low[0], low[1]), *(high - low)[:2]) for low, high in plan.boxes()]
    ax.add_collection(PatchCollection(frames, facecolor="none", edgecolor="C0", linewidth=0.5))
    if near is not None:
        lists = [block for block in plan.near_blocks() if near in block[0]]
        if not lists:
            raise ValueError(f"near = {near} is the index of no target: there are {plan.n_targets}")
        sources = np.concatenate([block[1] for block in lists])
        leaf = plan._sources if plan._at is None else plan._at
        leaf = leaf[lists[0][0]]
        ax.plot(*plan._sources[sources, :2].T, ".", color="C1", markersize=3, label="summed directly")
        low, high = leaf[:, :2].min(axis=0), leaf[:, :2].max(axis=0)
        ax.add_patch(Rectangle((low[0], low[1]), *(high - low), color="C3", label="leaf of the target", zorder=3))
        ax.legend(loc="upper right")
    ax.set_aspect("equal")
    ax.set_title(f"{plan.kernel.name}, {plan.n_sources} sources, {len(frames)} leaves")
    return ax
