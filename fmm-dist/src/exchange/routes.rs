//! The ways of multipoles: straight to the readers, along a hypercube, or through a manager.

use super::{Item, Wanted};
use crate::local::{Local, Name};
use crate::world::World;
use fmm_traits::{Error, Incoming, Round};
use std::collections::{BTreeMap, HashMap};

/// The boxes of `read` of which other ranks have parts, with these ranks.
pub fn wanted(world: &World, local: &Local, read: &[u32]) -> Wanted {
    let me = world.rank() as u32;
    let of = |&b: &u32| {
        let mut ranks = local.contributors(b as usize);
        ranks.retain(|&r| r != me);
        (!ranks.is_empty()).then_some((b, ranks))
    };
    read.iter().filter_map(of).collect()
}

/// One round: each rank sends its multipoles of `items` to their readers. `add`: readers add up parts.
pub fn direct(local: &Local, wanted: &Wanted, items: &[Item], add: bool) -> (Vec<Round>, usize) {
    let mut sends: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for (name, readers) in items {
        for &reader in readers {
            sends.entry(reader as usize).or_default().push(local.by_name[name]);
        }
    }
    let mut comes: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for (b, ranks) in wanted {
        ranks.iter().for_each(|&r| comes.entry(r as usize).or_default().push(*b));
    }
    // Senders go through names in ascending order.
    for slots in comes.values_mut() {
        slots.sort_by_key(|&b| local.names[b as usize]);
    }
    let receives = comes.into_iter().map(|(from, slots)| Incoming { from, slots, add }).collect();
    (vec![Round { sends: sends.into_iter().collect(), receives }], 0)
}

/// The rows of a rank while a schedule is made.
struct Slots<'a> {
    local: &'a Local,
    passing: HashMap<Name, u32>,
}

impl Slots<'_> {
    /// The slot of a multipole: its box, or a row that only passes through.
    fn of(&mut self, name: Name) -> u32 {
        let next = (self.local.tree.len() + self.passing.len()) as u32;
        let known = self.local.by_name.get(&name).copied();
        known.unwrap_or_else(|| *self.passing.entry(name).or_insert(next))
    }
}

/// Items on their way, by name.
type Cargo = BTreeMap<Name, Vec<u32>>;

/// Adds a reader.
fn load(cargo: &mut Cargo, name: Name, reader: u32) {
    let readers = cargo.entry(name).or_default();
    if let Err(at) = readers.binary_search(&reader) {
        readers.insert(at, reader);
    }
}

/// Takes out the readers for whom `leaves` holds.
fn unload(cargo: &mut Cargo, leaves: impl Fn(u32) -> bool) -> Cargo {
    let mut out = Cargo::new();
    for (&name, readers) in cargo.iter_mut() {
        let gone: Vec<u32> = readers.iter().copied().filter(|&r| leaves(r)).collect();
        if !gone.is_empty() {
            readers.retain(|&r| !leaves(r));
            out.insert(name, gone);
        }
    }
    cargo.retain(|_, readers| !readers.is_empty());
    out
}

/// Sends `out` to the rank `to` and gets what `from` sends here, if there is such a rank, while the schedule is made.
fn pass(
    world: &World,
    slots: &mut Slots,
    cargo: &mut Cargo,
    out: Option<(usize, Cargo)>,
    from: Option<usize>,
) -> Result<Round, Error> {
    let mut round = Round::default();
    let mut sends = Vec::new();
    if let Some((to, out)) = out {
        let mut message = Vec::new();
        let listed: Vec<(u64, Vec<u32>)> = out.iter().map(|(name, readers)| (name.0, readers.clone())).collect();
        crate::wire::Wire::put(&listed, &mut message);
        sends.push((to, message));
        if !out.is_empty() {
            round.sends.push((to, out.keys().map(|&name| slots.of(name)).collect()));
        }
    }
    let came = world.swap(sends, from.as_slice())?;
    for (message, &from) in came.iter().zip(from.as_slice()) {
        let listed: Vec<(u64, Vec<u32>)> = crate::wire::Wire::get(&mut crate::wire::Reader::new(message))?;
        for (name, readers) in &listed {
            readers.iter().for_each(|&reader| load(cargo, Name(*name), reader));
        }
        if !listed.is_empty() {
            let rows = listed.iter().map(|(name, _)| slots.of(Name(*name))).collect();
            round.receives.push(Incoming { from, slots: rows, add: true });
        }
    }
    Ok(round)
}

/// Algorithm 3 of Lashuk et al. (2009): in each round, ranks that differ in one bit exchange what is read on the other
/// side, and add up parts of one multipole. Ranks beyond the largest power of two give their parts to a partner before,
/// and get what they read from it after.
pub fn hypercube(world: &World, local: &Local, wanted: &Wanted, items: &[Item]) -> Result<(Vec<Round>, usize), Error> {
    let (me, size) = (world.rank(), world.size());
    let corners = 1 << size.ilog2();
    let corner_of = |rank: u32| if (rank as usize) < corners { rank as usize } else { rank as usize - corners };
    let mut slots = Slots { local, passing: HashMap::new() };
    let mut cargo: Cargo = items.iter().cloned().collect();
    let partner = if me < corners { (me + corners < size).then_some(me + corners) } else { Some(me - corners) };
    let mut rounds = Vec::new();
    if me >= corners {
        own_parts(local, wanted, &mut cargo, me);
    }
    if let Some(partner) = partner {
        let (out, from) = match me < corners {
            true => (None, Some(partner)),
            false => (Some((partner, std::mem::take(&mut cargo))), None),
        };
        rounds.push(pass(world, &mut slots, &mut cargo, out, from)?);
    }
    if me < corners {
        let mut bit = corners >> 1;
        while bit > 0 {
            let other = me ^ bit;
            let out = unload(&mut cargo, |reader| corner_of(reader) & bit != me & bit);
            rounds.push(pass(world, &mut slots, &mut cargo, Some((other, out)), Some(other))?);
            bit >>= 1;
        }
    }
    if let Some(partner) = partner {
        let (out, from) = match me < corners {
            true => (Some((partner, unload(&mut cargo, |reader| reader as usize == partner))), None),
            false => (None, Some(partner)),
        };
        let mut last = pass(world, &mut slots, &mut cargo, out, from)?;
        // The sums have the parts that this rank gave its partner.
        last.receives.iter_mut().for_each(|incoming| incoming.add = false);
        rounds.push(last);
    }
    Ok((rounds, slots.passing.len()))
}

/// Adds a reader's own parts to its cargo, for sums that are made elsewhere.
fn own_parts(local: &Local, wanted: &Wanted, cargo: &mut Cargo, me: usize) {
    for (b, _) in wanted.iter().filter(|(b, _)| local.tree.gives(*b as usize)) {
        load(cargo, local.names[*b as usize], me as u32);
    }
}

/// The manager of Hu et al. (2012): rank 0 gets all parts, and sends back sums.
pub fn manager(world: &World, local: &Local, wanted: &Wanted, items: &[Item]) -> Result<(Vec<Round>, usize), Error> {
    const MANAGER: usize = 0;
    let me = world.rank();
    let mut slots = Slots { local, passing: HashMap::new() };
    let mut cargo: Cargo = items.iter().cloned().collect();
    own_parts(local, wanted, &mut cargo, me);
    let mut first = Round::default();
    if me == MANAGER {
        for from in 1..world.size() {
            let round = pass(world, &mut slots, &mut cargo, None, Some(from))?;
            first.receives.extend(round.receives);
        }
    } else {
        let out = std::mem::take(&mut cargo);
        first = pass(world, &mut slots, &mut cargo, Some((MANAGER, out)), None)?;
    }
    let mut second = Round::default();
    if me == MANAGER {
        for to in 1..world.size() {
            let out = unload(&mut cargo, |reader| reader as usize == to);
            let round = pass(world, &mut slots, &mut cargo, Some((to, out)), None)?;
            second.sends.extend(round.sends);
        }
    } else {
        second = pass(world, &mut slots, &mut cargo, None, Some(MANAGER))?;
        second.receives.iter_mut().for_each(|incoming| incoming.add = false);
    }
    Ok((vec![first, second], slots.passing.len()))
}
