//! The stages of the fast multipole method and their order.
//!
//! [`Step::in_order`] follows Lashuk et al. (2009), Algorithm 1. Their S2U, U2U, VLI, XLI, D2D, D2T, WLI, ULI are
//! called P2M, M2M, M2L, P2L, L2L, L2P, M2P, P2P here.

use crate::Error;
use std::ops::Range;

/// The stages in the order in which the driver enqueues them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum Stage {
    /// Strengths from user order to tree order; accumulators cleared.
    Scatter,
    /// Sources → multipoles of leaves.
    P2m,
    /// Multipoles of children → parents.
    M2m,
    /// Multipoles → locals.
    M2l,
    /// Sources → locals.
    P2l,
    /// Locals of parents → children.
    L2l,
    /// Locals → targets.
    L2p,
    /// Multipoles → targets.
    M2p,
    /// Sources → targets.
    P2p,
    /// Values from tree order to user order.
    Gather,
}

impl Stage {
    /// All stages.
    pub const ALL: [Stage; 10] = [
        Stage::Scatter,
        Stage::P2m,
        Stage::M2m,
        Stage::M2l,
        Stage::P2l,
        Stage::L2l,
        Stage::L2p,
        Stage::M2p,
        Stage::P2p,
        Stage::Gather,
    ];
    /// Lower-case name.
    pub fn name(self) -> &'static str {
        ["scatter", "p2m", "m2m", "m2l", "p2l", "l2l", "l2p", "m2p", "p2p", "gather"][self as usize]
    }
}

/// The part of an evaluation that one call of [`Schedule::run`](crate::Schedule::run) does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A whole stage.
    Whole(Stage),
    /// The boxes of one level in a stage: M2M or L2L.
    Level(Stage, usize),
    /// After M2M: completes what lies on several ranks, multipoles of boxes and strengths.
    Exchange,
    /// All stages from the first to the last, together.
    Fused(Stage, Stage),
}

impl Step {
    /// The steps of a tree of so many levels, stage by stage.
    pub fn in_order(levels: usize) -> Vec<Step> {
        use Stage::*;
        let mut steps = vec![Step::Whole(Scatter)];
        // Upward: multipoles of leaves, then level by level towards the root.
        steps.push(Step::Whole(P2m));
        steps.extend((0..levels).rev().map(|level| Step::Level(M2m, level)));
        steps.push(Step::Exchange);
        // Across: well-separated boxes (V), and coarse sources of fine targets (X).
        steps.extend([M2l, P2l].map(Step::Whole));
        // Downward: from the root, each level completed before the next uses it.
        steps.extend((0..levels).map(|level| Step::Level(L2l, level)));
        // Then direct to targets: fine sources of coarse targets (W), and the near field (U).
        steps.extend([L2p, M2p, P2p, Gather].map(Step::Whole));
        steps
    }

    /// As [`in_order`](Self::in_order), but with P2P right after the exchange, so that a backend may begin it while it
    /// waits for other ranks. Values at targets then add up in the same order on any number of ranks: first near
    /// sources, then locals and multipoles.
    pub fn near_first(levels: usize) -> Vec<Step> {
        let mut steps = Step::in_order(levels);
        steps.retain(|step| *step != Step::Whole(Stage::P2p));
        let at = steps.iter().take_while(|step| **step != Step::Exchange).count();
        steps.insert(at + 1, Step::Whole(Stage::P2p));
        steps
    }

    /// The error of a backend that does not know the step.
    pub fn unknown(self) -> Error {
        let reason = format!("there is no {self:?}");
        Error::Unsupported { operation: "a step of an evaluation", reason }
    }

    /// The stages of the step, as a range of [`Stage::ALL`]; empty for an exchange.
    pub(crate) fn stages(self) -> Range<usize> {
        match self {
            Step::Whole(stage) | Step::Level(stage, _) => stage as usize..stage as usize + 1,
            Step::Fused(first, last) => first as usize..last as usize + 1,
            Step::Exchange => 0..0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Stage::*, Step};

    #[test]
    fn the_usual_order() {
        let found = Step::in_order(2);
        let up = [Step::Whole(Scatter), Step::Whole(P2m), Step::Level(M2m, 1), Step::Level(M2m, 0), Step::Exchange];
        let across = [Step::Whole(M2l), Step::Whole(P2l)];
        let down = [Step::Level(L2l, 0), Step::Level(L2l, 1)];
        assert_eq!(found, [&up[..], &across, &down, &[L2p, M2p, P2p, Gather].map(Step::Whole)].concat());
        let at_targets = [L2p, M2p, Gather].map(Step::Whole);
        assert_eq!(Step::near_first(2), [&up[..], &[Step::Whole(P2p)], &across, &down, &at_targets].concat());
        assert_eq!(Step::Fused(L2p, Gather).stages(), 6..10);
        assert!(Step::Exchange.stages().is_empty());
    }
}
