//! The near field of a plan whose far field is on the host ([`fmm_traits::near`]).

use crate::base::Base;
use crate::device::Device;
use crate::equivalent::DeviceScalar;
use crate::far::{FarField, Made};
use crate::lists::DeviceLists;
use crate::plan::{Carrier, Plan};
use crate::programs::Groups;
use crate::ranks::Ranks;
use crate::tree::{DevicePoints, DeviceTree};
use fmm_traits::{Error, Kernels, Lists, NearField, NearFields, Points, Precision, Shared, Tree};
use std::sync::{Arc, Mutex, PoisonError};

/// A device that sums near fields.
#[derive(Debug)]
pub struct NearOnDevice {
    device: Device,
    precision: Precision,
}

impl NearOnDevice {
    /// Near fields in a precision. As everywhere on a device, values are added up in f64.
    pub fn new(device: &Device, precision: Precision) -> Self {
        NearOnDevice { device: device.clone(), precision }
    }

    /// A plan of P2P alone, for strengths and values in tree order.
    fn plan<T: DeviceScalar>(
        &self,
        kernels: &Kernels,
        tree: &Tree,
        lists: &Lists,
    ) -> Result<Arc<dyn NearField>, Error> {
        let device = &self.device;
        let kernels = Kernels { scale: 1.0, ..kernels.clone() };
        let in_tree_order = |points: &Points| {
            let order: Vec<u32> = (0..points.len() as u32).collect();
            DevicePoints::upload(device, &points.xyz.each_ref().map(|axis| &axis[..]), &order).map(Arc::new)
        };
        let sources = in_tree_order(&tree.sources)?;
        let same = Arc::ptr_eq(&tree.sources, &tree.targets);
        let targets = if same { sources.clone() } else { in_tree_order(&tree.targets)? };
        let alone = |shared: &Arc<Shared>| Arc::new(Shared { exchange: None, ..Shared::clone(shared) });
        let boxes = Tree { shared: tree.shared.as_ref().map(alone), ..tree.clone() };
        let boxes = DeviceTree::with_points(device, &boxes, sources, targets)?;
        let near = Lists { p2p: lists.p2p.clone(), ..Lists::none(tree.len()) };
        let plan = Plan::<T, T>::of(&kernels, 0, Carrier::Nothing, boxes, DeviceLists::upload(device, &near)?)?;
        Ok(Arc::new(Alone(Mutex::new(plan))))
    }
}

impl NearFields for NearOnDevice {
    fn place(&self, kernels: &Kernels, tree: &Tree, lists: &Lists) -> Result<Arc<dyn NearField>, Error> {
        match self.precision {
            Precision::F32 => self.plan::<f32>(kernels, tree, lists),
            Precision::F64 => self.plan::<f64>(kernels, tree, lists),
        }
    }
}

/// The near field of some points on the device.
#[derive(Debug)]
struct Alone<T: DeviceScalar>(Mutex<Plan<T, T>>);

impl<T: DeviceScalar> NearField for Alone<T> {
    fn sums(&self, strengths: &[f64]) -> Result<Vec<f64>, Error> {
        // A poisoned lock is fine: whatever an interrupted run has left, the next run overwrites.
        let mut plan = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(plan.apply(strengths, &mut |_, _| true)?.0)
    }
}

/// A far field without edges.
#[derive(Debug)]
pub(crate) struct NoFarField;

impl FarField for NoFarField {
    fn groups(&self) -> [Groups; 2] {
        [Groups::far::<f64>(1); 2]
    }
    fn make(&mut self, _: &Base) -> Result<Made, Error> {
        Ok(Box::new(()))
    }
    fn take(&mut self, _: Made) {}
    fn p2m(&mut self, _: &Base) -> Result<(), Error> {
        Ok(())
    }
    fn m2m(&mut self, _: &Base, _: usize) -> Result<(), Error> {
        Ok(())
    }
    fn exchange(&mut self, _: &Base, _: &Ranks) -> Result<(), Error> {
        Ok(())
    }
    fn m2l(&mut self, _: &Base) -> Result<(), Error> {
        Ok(())
    }
    fn p2l(&mut self, _: &Base) -> Result<(), Error> {
        Ok(())
    }
    fn l2l(&mut self, _: &Base, _: usize) -> Result<(), Error> {
        Ok(())
    }
    fn l2p(&mut self, _: &Base) -> Result<(), Error> {
        Ok(())
    }
    fn m2p(&mut self, _: &Base) -> Result<(), Error> {
        Ok(())
    }
    fn leaves_room(&self) -> bool {
        false
    }
    fn bytes(&self) -> u64 {
        0
    }
}
