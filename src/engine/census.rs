//! What ranks would exchange, counted on one machine.

use super::octree::lists;
use super::ranks::{multipole_bytes, work_of_boxes};
use super::{build_options, list_options};
use crate::candidates::{Layout, Seen};
use crate::cloud::Given;
use crate::decide;
use crate::request::Fmm;
use crate::variant::Translation;
use fmm_dist::census::Census;
use fmm_traits::{Error, Targets};

/// The [`Census`] of a request.
#[derive(Debug)]
pub struct Counted {
    /// The tree, shared out. Work is in forecast seconds, on one core or on the GPU of the request.
    pub census: Census,
    /// Bytes of a multipole, and of the strengths of a source.
    pub bytes: [usize; 2],
}

impl Fmm {
    /// Counts what `ranks` ranks would exchange for `sources`, which are also the targets, with a given method and
    /// order. There are no ranks: one tree and its lists are made.
    ///
    /// # Errors
    /// As [`Fmm::plan`]; [`Error::Unsupported`] for the pyramid and for a tolerance instead of an order;
    /// [`Error::Parameter`] for no ranks.
    pub fn census(&self, sources: &[f64], ranks: usize) -> Result<Counted, Error> {
        let refuse = |reason: &str| {
            Err(Error::Unsupported { operation: "counting what ranks exchange", reason: reason.to_string() })
        };
        if ranks == 0 {
            let requirement = "there must be at least one rank";
            return Err(Error::Parameter { name: "ranks", value: 0.0, requirement });
        }
        if self.variant.translation == Some(Translation::Domains) {
            return refuse("ranks do not translate to domains");
        }
        let [n, _] = Given::Host(sources, Targets::Sources).counts(self.family.dim())?;
        let choice = decide::forecast(self, Seen { counts: [n, n], apart: false, extent: 0.0 })?;
        let (Layout::Octree(parts), Some(order)) = (choice.layout, choice.order) else {
            return refuse("it belongs to a fast method on an octree");
        };
        if choice.tolerance.is_some() {
            return refuse("it takes an order, because it does not measure errors");
        }
        let options = build_options(self, &choice, &parts);
        let points = fmm_families::in_space(parts.dim, sources);
        let (tree, report) = fmm_tree::build_reported(&points, None, &options)?;
        let lists = lists(&tree, &parts, &list_options(order, &parts), options.min_side)?;
        let work = work_of_boxes(self, &choice, (&parts, order), &tree, &lists);
        let capacity = fmm_dist::coarse_capacity(&report, self.ncrit.is_some());
        let census = Census::new(&tree, &lists, [ranks, capacity], &work);
        let multipole = multipole_bytes(self, &choice, &parts, order) as usize;
        Ok(Counted { census, bytes: [multipole, 8 * choice.facts.strengths] })
    }
}
