//! What the messages of a computation would cost on a network: the messages that ranks really send, in the LogGP model
//! (Alexandrov, Ionescu, Schauser & Scheiman 1995).

use crate::comm::Comm;
use fmm_traits::Error;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// What a rank did with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It sent one.
    Sent {
        /// The receiver.
        to: usize,
        /// The length.
        bytes: usize,
    },
    /// It took one.
    Received {
        /// The sender.
        from: usize,
    },
}

/// A transport that notes every message of its rank, in order.
pub struct Recorded {
    comm: Arc<dyn Comm>,
    events: Mutex<Vec<Event>>,
}

impl Recorded {
    /// Notes the messages of `comm`.
    pub fn new(comm: Arc<dyn Comm>) -> Self {
        Recorded { comm, events: Mutex::default() }
    }
    fn note(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
    /// What was noted since the last call.
    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Comm for Recorded {
    fn rank(&self) -> usize {
        self.comm.rank()
    }
    fn size(&self) -> usize {
        self.comm.size()
    }
    fn send(&self, to: usize, message: Arc<Vec<u8>>) -> Result<(), Error> {
        self.note(Event::Sent { to, bytes: message.len() });
        self.comm.send(to, message)
    }
    fn receive(&self, from: usize) -> Result<Vec<u8>, Error> {
        let message = self.comm.receive(from)?;
        self.note(Event::Received { from });
        Ok(message)
    }
    fn settle(&self) {
        self.comm.settle();
    }
    fn one_process(&self) -> bool {
        self.comm.one_process()
    }
}

/// A network, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogGp {
    /// L: from one rank to another.
    pub latency: f64,
    /// o: a rank's own time for a message that it sends or takes.
    pub overhead: f64,
    /// G: a byte on the wire of the sender, which carries one message at a time.
    pub byte: f64,
}

/// The messages of a computation on a network.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Replay {
    /// Seconds until the last rank is done, if ranks do nothing but send and take messages.
    pub seconds: f64,
    /// Most messages that a rank sends.
    pub messages: usize,
    /// Most bytes that a rank sends.
    pub bytes: usize,
}

/// Replays the `events` of each rank on a network without contention: messages of different senders do not meet.
///
/// # Errors
/// [`Error::RankLost`] if a rank takes a message that none sent.
pub fn replay(events: &[Vec<Event>], network: &LogGp) -> Result<Replay, Error> {
    let mut found = Replay::default();
    for of_rank in events {
        let sent = |e: &Event| if let Event::Sent { bytes, .. } = e { Some(*bytes) } else { None };
        found.messages = found.messages.max(of_rank.iter().filter_map(sent).count());
        found.bytes = found.bytes.max(of_rank.iter().filter_map(sent).sum());
    }
    let mut next = vec![0; events.len()];
    // When each rank, and its wire, are free.
    let (mut clock, mut wire) = (vec![0.0f64; events.len()], vec![0.0f64; events.len()]);
    let mut on_way: HashMap<(usize, usize), VecDeque<f64>> = HashMap::new();
    loop {
        let before: usize = next.iter().sum();
        for rank in 0..events.len() {
            while let Some(&event) = events[rank].get(next[rank]) {
                match event {
                    Event::Sent { to, bytes } => {
                        clock[rank] = clock[rank].max(wire[rank]) + network.overhead;
                        wire[rank] = clock[rank] + network.byte * bytes as f64;
                        on_way.entry((rank, to)).or_default().push_back(wire[rank] + network.latency);
                    }
                    Event::Received { from } => {
                        let Some(arrival) = on_way.get_mut(&(from, rank)).and_then(VecDeque::pop_front) else { break };
                        clock[rank] = clock[rank].max(arrival) + network.overhead;
                    }
                }
                next[rank] += 1;
            }
        }
        if next.iter().sum::<usize>() == before {
            break;
        }
    }
    if let Some(rank) = (0..events.len()).find(|&r| next[r] < events[r].len()) {
        return Err(Error::RankLost { rank, reason: "it takes a message that was not sent".to_string() });
    }
    found.seconds = clock.into_iter().fold(0.0, f64::max);
    Ok(found)
}

/// Adds a round of messages to the state of each rank: the seconds at which the rank, and its wire, are free.
///
/// `sends` gives the receivers and bytes of a rank's messages, in order; it is called twice for each rank. Receivers
/// take messages by ascending sender. The seconds are those of [`replay`] for ranks that send all they have before they
/// take anything, but no list of all messages is needed.
pub fn send(free: &mut [[f64; 2]], network: &LogGp, sends: impl Fn(usize) -> Vec<(usize, usize)>) {
    let before = free.to_vec();
    let after = |rank: usize, arrive: &mut dyn FnMut(usize, f64)| {
        let [mut clock, mut wire] = before[rank];
        for (to, bytes) in sends(rank) {
            clock = clock.max(wire) + network.overhead;
            wire = clock + network.byte * bytes as f64;
            arrive(to, wire + network.latency);
        }
        [clock, wire]
    };
    free.iter_mut().enumerate().for_each(|(rank, free)| *free = after(rank, &mut |_, _| {}));
    for rank in 0..before.len() {
        after(rank, &mut |to, arrival| free[to][0] = free[to][0].max(arrival) + network.overhead);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: LogGp = LogGp { latency: 5.0, overhead: 1.0, byte: 0.5 };

    /// Rounds that are not listed take as long as those that are.
    #[test]
    fn rounds_take_as_long_as_their_messages() {
        let (ranks, mut g) = (9, 7u64);
        let mut random = |n: u64| {
            g = g.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (g >> 33) % n
        };
        let sends: Vec<Vec<(usize, usize)>> = (0..ranks)
            .map(|from| {
                (0..ranks).filter(|&to| to != from && random(3) > 0).map(|to| (to, 3 + to * from % 5)).collect()
            })
            .collect();
        let mut events: Vec<Vec<Event>> =
            sends.iter().map(|s| s.iter().map(|&(to, bytes)| Event::Sent { to, bytes }).collect()).collect();
        for (from, to) in sends.iter().enumerate().flat_map(|(from, s)| s.iter().map(move |&(to, _)| (from, to))) {
            events[to].push(Event::Received { from });
        }
        let mut free = vec![[0.0; 2]; ranks];
        send(&mut free, &NETWORK, |rank| sends[rank].clone());
        let largest = free.iter().fold(0.0, |m: f64, c| m.max(c[0]));
        assert_eq!(largest, replay(&events, &NETWORK).unwrap().seconds);
    }

    #[test]
    fn messages_take_their_time() {
        let (sent, got) = (|to, bytes| Event::Sent { to, bytes }, |from| Event::Received { from });
        // There and back: o + kG + L + o each way.
        let there_and_back = [vec![sent(1, 10), got(1)], vec![got(0), sent(0, 2)]];
        let found = replay(&there_and_back, &NETWORK).unwrap();
        assert_eq!(
            found,
            Replay { seconds: (1.0 + 5.0 + 5.0 + 1.0) + (1.0 + 1.0 + 5.0 + 1.0), messages: 1, bytes: 10 }
        );
        // The second message waits for the wire; both are taken in their order.
        let two = [vec![sent(1, 10), sent(1, 4)], vec![got(0), got(0)]];
        assert_eq!(replay(&two, &NETWORK).unwrap().seconds, (1.0 + 5.0) + (1.0 + 2.0) + 5.0 + 1.0);
        assert!(replay(&[vec![], vec![got(0)]], &NETWORK).is_err());
    }
}
