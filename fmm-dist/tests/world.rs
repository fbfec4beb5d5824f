//! Joint calls: one error for all, no rank waits for ever.

use fmm_dist::wire::{Reader, Wire};
use fmm_dist::{Comm, World, threads_within};
use fmm_traits::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(10);

fn cancelled() -> Error {
    Error::Cancelled { stage: "m2l" }
}

/// Sums the numbers of ranks, once per joint call.
fn sum(world: &World) -> Result<f64, Error> {
    let mut x = [world.rank() as f64 + 1.0];
    world.reduce(&mut x, |a, b| a + b)?;
    Ok(x[0])
}

#[test]
fn errors_travel() {
    let name = || "a kernel".into();
    let errors = [
        Error::NotFinite { array: "strengths", row: 3, column: 1, value: f64::INFINITY },
        Error::Extent { extent: 1e200, low: 1e-100, high: 1e100 },
        Error::Shape { array: "sources", found: 4, expected: 3, why: "three a point".into() },
        Error::ToleranceFloor {
            tolerance: 1e-12,
            floor: 1e-8,
            output: "gradient",
            kernel: name(),
            precision: "f32",
            hint: "; f64".into(),
        },
        Error::Fact {
            kernel: name(),
            fact: "degree",
            stated: "−1".into(),
            r: [1.0, 2.0, 3.0],
            expected: 1.0,
            found: 2.0,
        },
        Error::NoOutput,
        Error::Memory { needed: 1 << 40, available: 1 << 30, what: "a plan".into() },
        Error::Edge { what: "too near".into(), target: 3, source_box: 5 },
        cancelled(),
        Error::Rank { rank: 3, error: Box::new(cancelled()) },
        Error::RankLost { rank: 2, reason: "it has ended".into() },
        Error::RanksDiffer { what: "the order".into(), rank: 1, found: "3".into(), expected: "4".into() },
    ];
    for error in errors {
        let mut bytes = Vec::new();
        error.put(&mut bytes);
        assert_eq!(Error::get(&mut Reader::new(&bytes)).unwrap(), error);
        for cut in 0..bytes.len() {
            assert!(Error::get(&mut Reader::new(&bytes[..cut])).is_err(), "{error} cut at {cut}");
        }
    }
}

/// Whichever ranks fail, and wherever: all get the error of the lowest, and the next joint call works.
#[test]
fn the_lowest_error_is_that_of_all() {
    for ranks in [2, 3, 5] {
        for failing in 1usize..1 << ranks {
            for late in [false, true] {
                let results = threads_within(SOON, ranks, |world| {
                    let mine = failing >> world.rank() & 1 == 1;
                    let failed = world.together(|| {
                        let first = sum(&world)?;
                        let second = if mine && !late { Err(cancelled()) } else { sum(&world) }?;
                        if mine { Err(cancelled()) } else { Ok(first + second) }
                    });
                    (failed, world.together(|| sum(&world)))
                });
                let rank = failing.trailing_zeros() as usize;
                let expected = Error::Rank { rank, error: Box::new(cancelled()) };
                let total = (ranks * (ranks + 1) / 2) as f64;
                for result in results {
                    assert_eq!(result.unwrap(), (Err(expected.clone()), Ok(total)), "{failing:b} of {ranks}, {late}");
                }
            }
        }
    }
}

#[test]
fn a_panic_reaches_all() {
    let start = Instant::now();
    for inside in [false, true] {
        let results = threads_within(SOON, 4, |world| {
            assert!(inside || world.rank() != 2, "outside");
            world.together(|| {
                assert!(world.rank() != 2, "inside");
                sum(&world)
            })
        });
        for (rank, result) in results.into_iter().enumerate() {
            let lost = |e: &Error| matches!(e, Error::RankLost { rank: 2, .. });
            match result {
                Err(e) if rank == 2 => assert!(lost(&e) && e.to_string().contains("side"), "{e}"),
                Ok(Err(e)) => assert!(lost(&e), "{e}"),
                other => panic!("rank {rank}: {other:?}"),
            }
        }
    }
    assert!(start.elapsed() < SOON);
}

/// Loses one message.
struct Lossy {
    world: Arc<dyn Comm>,
    left: AtomicUsize,
}

impl Comm for Lossy {
    fn rank(&self) -> usize {
        self.world.rank()
    }
    fn size(&self) -> usize {
        self.world.size()
    }
    fn send(&self, to: usize, message: Arc<Vec<u8>>) -> Result<(), Error> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            1 => Ok(()),
            _ => self.world.send(to, message),
        }
    }
    fn receive(&self, from: usize) -> Result<Vec<u8>, Error> {
        self.world.receive(from)
    }
}

#[test]
fn a_lost_message_is_noticed() {
    for lost in 1..=4 {
        let start = Instant::now();
        let results = threads_within(Duration::from_millis(300), 3, |world| {
            let left = AtomicUsize::new(if world.rank() == 1 { lost } else { usize::MAX });
            let world = World::new(Arc::new(Lossy { world: world.transport(), left }));
            let result = world.together(|| Ok(sum(&world)? + sum(&world)?));
            // All are there until the last has noticed.
            std::thread::sleep(Duration::from_secs(2));
            result
        });
        let failed = results.iter().filter(|r| matches!(r, Ok(Err(Error::RankLost { .. })))).count();
        assert!(failed >= 1, "message {lost}: {results:?}");
        assert!(start.elapsed() < SOON);
    }
}
