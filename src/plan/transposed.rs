//! Transposed sums: those of the transposed matrix of a plan.

use super::Plan;
use crate::choice::Choice;
use crate::cloud::Given;
use crate::request::{Fmm, Inherited, Method};
use crate::validate;
use backend_cuda::{DeviceArray, DeviceStream};
use fmm_traits::{Error, Outputs, Targets};
use std::sync::Arc;

impl Plan {
    /// Aᵀv, where A is the matrix from strengths to potentials. `v` is M×c, the result N×s. The first call may make a
    /// plan with sources and targets exchanged, the [`transposed`](Plan::transposed) plan for the potential.
    ///
    /// # Errors
    /// As [`Plan::transposed`] and [`Plan::apply`].
    pub fn apply_transpose(&self, v: &[f64]) -> Result<Vec<f64>, Error> {
        self.one_rank_only("apply_transpose")?;
        self.host_only("apply_transpose")?;
        let (kernel, facts) = (self.request.family.name(), self.request.family.facts(Outputs::POTENTIAL)?);
        let values = facts.values;
        validate::matrix("values", v, self.n_targets, values, kernel)?;
        let plan = self.transposed(Outputs::POTENTIAL)?;
        if self.engine.is_none() {
            return Ok(vec![0.0; self.n_sources * facts.strengths]);
        }
        let mut spread = Vec::new();
        let mut v = v;
        if let Some(subset) = &self.subset {
            // Spreads `v` over all sources: the targets are a subset of the rows of the full matrix.
            spread.resize(self.n_sources * values, 0.0);
            for (from, &i) in v.chunks_exact(values).zip(subset) {
                for (k, x) in from.iter().enumerate() {
                    spread[i * values + k] += x;
                }
            }
            v = &spread;
        }
        Ok(plan.apply(v)?.potential)
    }

    /// The plan of the transposed sums w_j = Σ_i K(x_i − y_j)ᵀ·v_i, from the targets x_i of this plan to its sources
    /// y_j. Its strengths are the v_i, its potential are the w_j, its gradient is ∂w_j/∂y_j (components of w, then
    /// axes). With them a program has all derivatives of L = Σ_i v_i·u_i, where u_i are the sums of this plan: ∂L/∂q_j
    /// = w_j, ∂L/∂y_j = q_j·∂w_j/∂y_j, and ∂L/∂x_i = v_i·∂u_i/∂x_i with the gradient of this plan.
    ///
    /// The transposed plan has the points of this plan and the same processor. It measures its own order for the
    /// tolerance of this plan, or takes the given order. A method that the transposed kernel does not have is chosen
    /// anew. If K(−r) = K(r)ᵀ, the transposed plan for the potential has the leaves and the order of this plan, so that
    /// one matrix is the transpose of the other to the last digits. If the targets are a subset of the sources, the
    /// transposed plan takes values at all sources, which are 0 at sources that are no targets.
    ///
    /// The first call makes the transposed plan and keeps it. [`set_points`](Plan::set_points) drops it, and the next
    /// call makes a new one. A transposed plan that you still hold keeps the old points.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if sources have attributes, and for kernels with Laurent series without K(−r) = K(r)ᵀ;
    /// else as [`Fmm::plan`].
    pub fn transposed(&self, outputs: Outputs) -> Result<Arc<Plan>, Error> {
        self.one_rank_only("transposed sums")?;
        let mut slot = self.transposed.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, plan)) = slot.iter().find(|(known, _)| *known == outputs) {
            return Ok(plan.clone());
        }
        let facts = self.request.family.facts(Outputs::POTENTIAL)?;
        let mut request = self.request.transposed(outputs)?;
        if let Some(engine) = self.engine.as_ref().filter(|_| facts.reciprocal && outputs == Outputs::POTENTIAL) {
            self.inherit(engine.asked().1, &mut request);
        }
        let (sources, targets) = match &self.engine {
            Some(engine) => engine.points()?,
            // Sums over nothing have no points.
            None => (vec![0.0; self.n_sources * facts.dim], vec![0.0; self.n_targets * facts.dim]),
        };
        let here = Targets::Points(&sources);
        let plan = match (self.separate, self.request.backend.processor().opened(&request).transpose()?) {
            (true, Some(device)) if self.on_device => {
                let [x, y] = [&targets, &sources].map(|points| DeviceArray::new(&device, points));
                Plan::at(request, Given::Device(&x?, Some(&y?), &DeviceStream::Null))?
            }
            (false, Some(device)) if self.on_device => {
                Plan::at(request, Given::Device(&DeviceArray::new(&device, &sources)?, None, &DeviceStream::Null))?
            }
            (true, _) => Plan::at(request, Given::Host(&targets, here))?,
            (false, _) => Plan::at(request, Given::Host(&sources, Targets::Sources))?,
        };
        let plan = Arc::new(plan);
        slot.push((outputs, plan.clone()));
        Ok(plan)
    }

    /// Gives a transposed `request` the order, the leaves and the near pairs of this plan, so that one matrix is the
    /// transpose of the other. (Plans for a subset agree to the tolerance only: their targets are separate points.)
    fn inherit(&self, choice: &Choice, request: &mut Fmm) {
        request.method = self.choice.method;
        request.inherited = Some(Inherited { error: choice.tolerance, occupancy: choice.occupancy });
        if let Some(order) = self.choice.order {
            (request.tolerance, request.order) = (None, Some(order));
            request.variant.theta = self.choice.theta();
        }
        if request.method == Method::Direct {
            request.variant = Default::default();
        }
    }
}
