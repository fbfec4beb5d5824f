//! Kinds of leaves, by which a sample is stratified.

use fmm_tree::Incoming;

/// The properties by which leaves are told apart. A stratum has the leaves of one kind, or of all rare kinds together.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    level: u8,
    /// 0: less than a quarter of the mean number of targets per leaf; 2: more than four times the mean; 1: between.
    population: u8,
    /// Bit set: bit k stands for `TRAIT_NAMES[k]`.
    traits: u8,
}

/// Names of the traits of a leaf, which depend on its edges and sources.
const TRAIT_NAMES: [&str; 5] = ["M2P", "P2L", "more edges than 98 %", "P2P over two levels or more", "no sources"];

/// What kinds compare a leaf with.
pub(super) struct Thresholds {
    /// Mean number of targets of a leaf.
    pub targets: usize,
    /// The 98 % point of the number of edges of a leaf.
    pub edges: u32,
}

impl Kind {
    /// The kind of a leaf of a level with so many targets and sources.
    pub(super) fn of(level: usize, here: Incoming, [sources, targets]: [usize; 2], thresholds: &Thresholds) -> Kind {
        let facts = [here.m2p(), here.p2l(), here.edges() > thresholds.edges, here.jump(), sources == 0];
        let traits = facts.iter().enumerate().map(|(bit, &is)| u8::from(is) << bit).sum();
        let population =
            u8::from(4 * targets >= thresholds.targets) + u8::from(targets > 4 * thresholds.targets.max(1));
        Kind { level: level as u8, population, traits }
    }

    /// A number that ascends as kinds do.
    pub(super) fn code(self) -> u64 {
        u64::from_be_bytes([0, 0, 0, 0, 0, self.level, self.population, self.traits])
    }

    pub(super) fn of_code(code: u64) -> Kind {
        let [.., level, population, traits] = code.to_be_bytes();
        Kind { level, population, traits }
    }

    pub(super) fn name(self) -> String {
        let traits = (0..TRAIT_NAMES.len()).filter(|bit| self.traits >> bit & 1 == 1).map(|bit| TRAIT_NAMES[bit]);
        let population = ["few points", "", "many points"][usize::from(self.population)];
        let words: Vec<&str> = [population].into_iter().filter(|w| !w.is_empty()).chain(traits).collect();
        match words.is_empty() {
            true => format!("level {}", self.level),
            false => format!("level {}: {}", self.level, words.join(", ")),
        }
    }
}
