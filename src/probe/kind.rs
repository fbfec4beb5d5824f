//! Kinds of leaves, by which a sample is stratified.

use fmm_tree::Incoming;

/// The properties that the leaves of a stratum share.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    level: u8,
    /// 0: less than a quarter of the mean number of targets per leaf; 2: more than four times the mean; 1: between.
    population: u8,
    /// Bit set: bit k stands for `REACH_NAMES[k]`.
    reached: u8,
}

/// Names of the properties of a leaf that depend on its edges and sources.
const REACH_NAMES: [&str; 5] = ["M2P", "P2L", "more edges than 98 %", "P2P over two levels or more", "no sources"];

/// What kinds compare a leaf with.
pub(super) struct Usual {
    /// Mean number of targets of a leaf.
    pub targets: usize,
    /// Number of edges that the leaves with more edges than 98 % of all exceed.
    pub edges: u32,
}

impl Kind {
    /// The kind of a leaf of a level with so many targets and sources.
    pub(super) fn of(level: usize, here: Incoming, [sources, targets]: [usize; 2], usual: &Usual) -> Kind {
        let facts = [here.m2p(), here.p2l(), here.edges() > usual.edges, here.jump(), sources == 0];
        let reached = facts.iter().enumerate().map(|(bit, &is)| u8::from(is) << bit).sum();
        let population = u8::from(4 * targets >= usual.targets) + u8::from(targets > 4 * usual.targets.max(1));
        Kind { level: level as u8, population, reached }
    }

    /// A number that ascends as kinds do.
    pub(super) fn code(self) -> u64 {
        u64::from_be_bytes([0, 0, 0, 0, 0, self.level, self.population, self.reached])
    }

    pub(super) fn of_code(code: u64) -> Kind {
        let [.., level, population, reached] = code.to_be_bytes();
        Kind { level, population, reached }
    }

    pub(super) fn name(self) -> String {
        let reached = (0..REACH_NAMES.len()).filter(|bit| self.reached >> bit & 1 == 1).map(|bit| REACH_NAMES[bit]);
        let population = ["few points", "", "many points"][usize::from(self.population)];
        let words: Vec<&str> = [population].into_iter().filter(|w| !w.is_empty()).chain(reached).collect();
        match words.is_empty() {
            true => format!("level {}", self.level),
            false => format!("level {}: {}", self.level, words.join(", ")),
        }
    }
}
