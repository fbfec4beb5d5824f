//! Tasks of P2P, L2P and M2P (`kernels/shared/task.cuh`). Each block has one: to sum a *group* of the targets of a leaf
//! over a *part* of its edges.
//!
//! Parts exist because leaves differ in their number of edges. A large leaf beside a dense cluster has an edge from each
//! small box at its surface. Example: of 2²⁰ points on a sphere along circles of latitude, 1024 lie at a pole, in a leaf
//! of the first level with 1737 edges. One block would still sum this leaf long after all others are done.

use crate::arrange::{Arranger, BLOCK, Items};
use crate::base::Base;
use crate::device::{Arg, Buffer, Device, Functions, blocks};
use crate::lists::{DeviceEdges, each};
use crate::pieces::{Leaves, Pieces};
use crate::programs::{Groups, LEAF_THREADS};
use fmm_traits::Error;
use fmm_traits::tree::NONE;

/// Numbers of a task (`Task` in `task.cuh`), u32 each.
const TASK: usize = 4;
/// Kinds of edges: P2P, L2P and M2P.
const KINDS: usize = 3;
/// Numbers that are counted for each leaf: tasks and rows of partial sums of each kind.
const COLUMNS: usize = 2 * KINDS;
/// Largest size by which leaves are sorted, in grains ([`Groups::grain`]). Leaves with more targets are not sorted among themselves.
const MAX_GRAINS: usize = 255;

/// The leaves that receive edges of one kind, and their tasks.
#[derive(Debug)]
pub(crate) struct Tasks {
    leaves: Leaves,
    tasks: Buffer<u32>,
    /// First task of each piece, then the number of tasks.
    starts: Vec<usize>,
    /// Rows of partial sums of each piece. The first part of a group adds to the values, the others have rows of their
    /// own, one for each target.
    rows: Vec<usize>,
    /// Partial sums of the current piece: zeros before and after a sum.
    partial: Buffer<f64>,
    groups: Groups,
}

/// Edges of one kind, and how their leaves are divided into tasks.
pub(crate) struct Of<'a> {
    pub edges: &'a DeviceEdges,
    pub groups: Groups,
    /// Most edges of a part.
    pub part: u32,
    /// Whether the tasks come by falling number of targets. Blocks that run at the same time then have loops of equal
    /// length: they share the instruction cache, and no large leaf is left for the end. Otherwise they come in the order
    /// of boxes.
    pub sorted: bool,
}

/// Makes the tasks of some kinds of edges, for `pieces` of targets of `width` values. Waits once.
///
/// # Errors
/// [`Error::TooMany`] beyond 2³² − 2 rows of partial sums, and errors of the device.
pub(crate) fn divide(
    mut all: [(&mut Tasks, Of); KINDS],
    arranger: &Arranger,
    pieces: &Pieces,
    width: usize,
) -> Result<(), Error> {
    let device = arranger.device();
    let room = all.iter().map(|(tasks, _)| tasks.leaves.len()).max().unwrap_or(0);
    let counts: [Buffer<u32>; COLUMNS] = each(|_| device.alloc(room, "tasks"))?;
    let before: [Buffer<u64>; COLUMNS] = each(|_| device.alloc(room + 1, "tasks"))?;
    for ((tasks, of), counts) in all.iter_mut().zip(counts.chunks(2)) {
        tasks.count(arranger, pieces, of, counts)?;
    }
    arranger.primitives.scan::<COLUMNS>(std::array::from_fn(|k| (&counts[k], &before[k])), room)?;
    let columns = all.iter().flat_map(|(tasks, _)| [tasks.leaves.starts(); 2]).zip(&before);
    let at: Vec<_> = columns.flat_map(|(starts, before)| starts.iter().map(move |&leaf| (before, leaf))).collect();
    let at_pieces: Vec<usize> = device.entries(&at, "tasks")?.iter().map(|&x| x as usize).collect();
    let at_pieces = at_pieces.chunks(2 * (pieces.count() + 1));
    for (((tasks, of), before), at_pieces) in all.iter_mut().zip(before.chunks(2)).zip(at_pieces) {
        tasks.fill(arranger, of, before, at_pieces.split_at(pieces.count() + 1), width)?;
    }
    Ok(())
}

/// The grain and the most grains of a group.
fn sizes(groups: Groups) -> [Arg; 2] {
    [groups.grain(), groups.most()].map(|x| Arg::from(x as u32))
}

impl Tasks {
    /// No tasks yet of the leaves `items`.
    pub fn none(device: &Device, items: Items, groups: Groups) -> Result<Self, Error> {
        let (tasks, partial) = (device.alloc(0, "tasks")?, device.alloc(0, "partial sums")?);
        Ok(Tasks { leaves: Leaves::one(items), tasks, starts: vec![0; 2], rows: vec![0], partial, groups })
    }

    /// Sorts the leaves, and enqueues counting the tasks and the rows of partial sums of each: the two columns `counts`.
    fn count(&mut self, arranger: &Arranger, pieces: &Pieces, of: &Of, counts: &[Buffer<u32>]) -> Result<(), Error> {
        let (device, groups, room) = (arranger.device(), of.groups, counts[0].len());
        (self.tasks, self.partial) = (device.alloc(0, "tasks")?, device.alloc(0, "partial sums")?);
        (self.starts, self.rows) = (vec![0; pieces.count() + 1], vec![0; pieces.count()]);
        self.leaves.sort(arranger, pieces, if of.sorted { [groups.grain(), MAX_GRAINS] } else { [1, 0] })?;
        let ([grain, most], number, room_of) = (sizes(groups), self.leaves.len() as u32, room as u32);
        let args = [
            arranger.boxes.into(),
            self.leaves.boxes.at(0),
            number.into(),
            (&of.edges.starts).into(),
            grain,
            most,
            of.part.into(),
            room_of.into(),
            (&counts[0]).into(),
            (&counts[1]).into(),
        ];
        // SAFETY: arguments as in arrange.cu; both columns have `room` entries, at least one for each leaf.
        unsafe { device.launch(&arranger.functions, "task_counts", (blocks(room, BLOCK as usize)?, 1), BLOCK, &args) }
    }

    /// Enqueues making the tasks. `before`: the numbers of tasks and of rows before each leaf. `at_pieces`: the same
    /// numbers before each piece, and then the totals.
    fn fill(
        &mut self,
        arranger: &Arranger,
        of: &Of,
        before: &[Buffer<u64>],
        (tasks, rows): (&[usize], &[usize]),
        width: usize,
    ) -> Result<(), Error> {
        let (device, pieces) = (arranger.device(), rows.len() - 1);
        let each: Vec<usize> = rows.windows(2).map(|w| w[1] - w[0]).collect();
        let (most_rows, limit) = (each.iter().copied().max().unwrap_or(0), NONE as usize - 1);
        if most_rows > limit {
            return Err(Error::TooMany { what: "partial sums of leaves with many edges", found: most_rows, limit });
        }
        let made = device.alloc(TASK * tasks[pieces], "tasks")?;
        let (boxes, starts, [grain, most]) = (Arg::from(arranger.boxes), Arg::from(&of.edges.starts), sizes(of.groups));
        for piece in 0..pieces {
            let ((items, number), first) = (self.leaves.of(piece), self.leaves.starts()[piece]);
            let [tasks_before, rows_before] = [0, 1].map(|column: usize| before[column].at(first));
            let (number_of, to) = ((number as u32).into(), made.at(TASK * tasks[piece]));
            let args = [boxes, items, number_of, starts, grain, most, of.part.into(), tasks_before, rows_before, to];
            let grid = (blocks(number, BLOCK as usize)?, 1);
            // SAFETY: arguments as in arrange.cu; the tasks of the piece begin at `to`.
            unsafe { device.launch(&arranger.functions, "task_fill", grid, BLOCK, &args)? };
        }
        self.partial = device.zeros(most_rows * width, "partial sums")?;
        (self.tasks, self.starts, self.rows, self.groups) = (made, tasks.to_vec(), each, of.groups);
        Ok(())
    }

    /// Enqueues the sums of the current piece of `base`; `beside`: on the second stream. The kernel has the arguments
    /// boxes, tasks and first edges, then `rest`, then the first target, partial sums and values.
    ///
    /// # Safety
    /// As for [`Device::launch`] and [`Device::launch_beside`]. The tasks were made for `edges`. Each value of a target is
    /// written by one task, and each row of partial sums, too, so that nothing else may write the values until then.
    pub unsafe fn sum(
        &self,
        base: &Base,
        edges: &DeviceEdges,
        (functions, entry): (&Functions, &'static str),
        beside: bool,
        rest: &[Arg],
    ) -> Result<(), Error> {
        let (device, piece) = (base.device(), base.piece());
        let (tasks, count) = (self.tasks.at(TASK * self.starts[piece]), self.starts[piece + 1] - self.starts[piece]);
        let joined = self.rows[piece] > 0;
        let partial = if joined { Arg::from(&self.partial) } else { Arg::NULL };
        let (boxes, starts, [held, values]) = (Arg::from(&base.boxes), Arg::from(&edges.starts), base.held());
        let args: Vec<Arg> =
            [boxes, tasks, starts].iter().chain(rest).chain(&[held, partial, values]).copied().collect();
        let launch = |functions, entry, blocks, threads, args: &[Arg]| {
            // SAFETY: the caller's promise, and for the second kernel: arguments as in arrange.cu.
            unsafe {
                if beside {
                    device.launch_beside(functions, entry, (blocks, 1), threads, args)
                } else {
                    device.launch(functions, entry, (blocks, 1), threads, args)
                }
            }
        };
        launch(functions, entry, blocks(count, 1)?, LEAF_THREADS as u32, &args)?;
        if !joined {
            return Ok(());
        }
        let [grain, most] = sizes(self.groups);
        let width = (base.width() as u32).into();
        let args = [boxes, tasks, (count as u32).into(), grain, most, width, partial, held, values];
        launch(base.arrange(), "join_parts", blocks(32 * count, BLOCK as usize)?, BLOCK, &args)
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.leaves.boxes.bytes() + self.tasks.bytes() + self.partial.bytes()
    }
}
