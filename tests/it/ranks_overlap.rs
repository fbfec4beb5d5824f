//! On cores, a rank sums near pairs while it waits for messages: no clock, but transports that hold messages back until
//! a number of pairs was summed.

use crate::ranks::piece;
use crate::strengths;
use fmm::ranks::{Comm, World, threads_within};
use fmm::{Error, Fmm, Kernel, Lane, Method, Targets};
use fmm_traits::testkit::clouds::CloudKind;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// How long a message is held back at most, and how long a rank may be silent.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a rank has done, as its kernel and its transport see it.
#[derive(Default)]
struct Seen {
    /// Evaluations of the kernel, some pairs each.
    evaluations: AtomicUsize,
    /// The evaluations before the exchange.
    before: AtomicUsize,
    /// The evaluations during the exchange.
    early: AtomicUsize,
    /// Whether the rank is between M2M and the stage after the exchange.
    exchanging: AtomicBool,
    /// Whether evaluations during the exchange take long.
    slow: AtomicBool,
}

impl Seen {
    /// Evaluations since the exchange began.
    fn during(&self) -> usize {
        self.evaluations.load(SeqCst) - self.before.load(SeqCst)
    }
}

thread_local! {
    /// The rank for which this thread works.
    static HERE: RefCell<Option<Arc<Seen>>> = const { RefCell::new(None) };
}

/// 1/r.
#[derive(Clone, Debug)]
struct Counted;

impl Kernel for Counted {
    const NAME: &'static str = "counted";
    #[inline(always)]
    fn eval<V: Lane>(p: &[V], r: &[V], q: &[V], u: &mut [V]) {
        count();
        fmm::Laplace::eval(p, r, q, u);
    }
    fn value_degree(_: usize) -> i32 {
        -1
    }
}

#[inline(never)]
fn count() {
    HERE.with_borrow(|here| {
        if let Some(seen) = here {
            seen.evaluations.fetch_add(1, SeqCst);
            if seen.slow.load(SeqCst) && seen.exchanging.load(SeqCst) {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    });
}

/// A transport whose messages of the exchange arrive once the kernel was evaluated `wanted` times meanwhile.
struct Held {
    inner: Arc<dyn Comm>,
    seen: Arc<Seen>,
    wanted: AtomicUsize,
    /// Whether the message is lost then.
    torn: AtomicBool,
}

impl Comm for Held {
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn send(&self, to: usize, message: Arc<Vec<u8>>) -> Result<(), Error> {
        self.inner.send(to, message)
    }
    fn receive(&self, from: usize) -> Result<Vec<u8>, Error> {
        let (start, lost) = (Instant::now(), |reason: &str| Error::RankLost { rank: from, reason: reason.to_string() });
        if self.seen.exchanging.load(SeqCst) {
            while self.seen.during() < self.wanted.load(SeqCst) {
                std::thread::sleep(Duration::from_micros(100));
                if start.elapsed() > PATIENCE {
                    return Err(lost("no near pair is summed before it has sent"));
                }
            }
            if self.torn.load(SeqCst) {
                return Err(lost("torn"));
            }
        }
        self.inner.receive(from)
    }
    fn one_process(&self) -> bool {
        self.inner.one_process()
    }
}

/// A rank with a thread of its own, on which its stages and its kernel run.
fn watched(builder: &Fmm, world: &World) -> (Fmm, Arc<Seen>, Arc<Held>) {
    let seen = Arc::new(Seen::default());
    let (inner, of_rank) = (world.transport(), seen.clone());
    let held = Held { inner, seen: seen.clone(), wanted: AtomicUsize::new(0), torn: AtomicBool::new(false) };
    let held = Arc::new(held);
    let request = builder.clone().ranks(&World::new(held.clone())).threads(1).progress(move |p| {
        HERE.set(Some(of_rank.clone()));
        if of_rank.exchanging.swap(p.phase == "m2m", SeqCst) {
            of_rank.early.store(of_rank.during(), SeqCst);
        }
        if p.phase == "m2m" {
            of_rank.before.store(of_rank.evaluations.load(SeqCst), SeqCst);
        }
        true
    });
    (request, seen, held)
}

fn requests() -> [(&'static str, Fmm); 3] {
    let of = |method, order| Fmm::new(fmm::AnyFamily::new(Counted)).method(method).order(order).ncrit(20);
    [
        ("densities", of(Method::EquivalentDensities, 4)),
        ("interpolation", of(Method::Interpolation, 4)),
        ("harmonics", of(Method::SphericalHarmonics, 6)),
    ]
}

/// All messages of an exchange may arrive as late as when every near pair among own points is summed.
#[test]
fn near_pairs_are_summed_before_messages_arrive() {
    let (x, q) = (CloudKind::Uniform.points(2000, 3), strengths(2000, 4));
    for (name, builder) in requests() {
        let one = builder.plan(&x, Targets::Sources).unwrap().apply(&q).unwrap().potential;
        for ranks in [2, 3] {
            let shares = vec![1; ranks];
            let results = threads_within(2 * PATIENCE, ranks, |world| -> Result<_, Error> {
                let (request, seen, held) = watched(&builder, &world);
                let plan = request.plan(piece(&x, 3, &shares, world.rank()), Targets::Sources)?;
                let q = piece(&q, 1, &shares, world.rank());
                plan.apply(q)?;
                let early = seen.early.load(SeqCst);
                held.wanted.store(early, SeqCst);
                Ok((early, plan.apply(q)?.potential))
            });
            let mut all = Vec::new();
            for result in results {
                let (early, sums) = result.and_then(|r| r).unwrap_or_else(|e| panic!("{name} on {ranks}: {e}"));
                assert!(early > 0, "{name} on {ranks}: nothing is summed meanwhile");
                all.extend(sums);
            }
            assert_eq!(all, one, "{name} on {ranks}");
        }
    }
}

/// A rank that loses a message ends its near pairs, and those of the others, and all get the error.
#[test]
fn a_failing_exchange_ends_the_near_pairs() {
    let (x, q) = (CloudKind::Uniform.points(4000, 3), strengths(4000, 4));
    for (name, builder) in requests() {
        let results = threads_within(2 * PATIENCE, 2, |world| -> Result<_, Error> {
            let (request, seen, held) = watched(&builder, &world);
            let plan = request.plan(piece(&x, 3, &[1; 2], world.rank()), Targets::Sources)?;
            let q = piece(&q, 1, &[1; 2], world.rank());
            plan.apply(q)?;
            let whole = seen.early.load(SeqCst);
            held.wanted.store(1, SeqCst);
            held.torn.store(world.rank() == 1, SeqCst);
            seen.slow.store(true, SeqCst);
            let error = plan.apply(q).unwrap_err();
            Ok((error, seen.during(), whole))
        });
        for result in results {
            let (error, found, whole) = result.and_then(|r| r).unwrap();
            assert!(matches!(&error, Error::RankLost { rank: 0, reason } if reason == "torn"), "{name}: {error:?}");
            assert!(found >= 1 && found < whole / 2, "{name}: {found} of {whole} evaluations");
        }
    }
}
