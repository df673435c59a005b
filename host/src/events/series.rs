//! What has been told, what of it is written, and what is due. Pure: who writes says how it went.

use super::object;
use crate::driver::{Matter, Notice, Subject};
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

/// Of one matter an object has one event at a time.
pub(super) type Key = (Subject, Matter);

/// So many events are followed at a time.
const MOST: usize = 256;

/// After the first write. The kubelet tries a refused claim again several times a minute.
const FIRST_REST: Duration = Duration::from_secs(60);
/// Below the hour after which the API server forgets an event, so that one which goes on is there to be seen.
const LONGEST_REST: Duration = Duration::from_secs(30 * 60);

/// The events that are followed.
#[derive(Debug, Default)]
pub(super) struct Series(BTreeMap<Key, Slot>);

#[derive(Debug)]
struct Slot {
    text: String,
    /// How often since the last write.
    times: u32,
    /// The first time and the last time since the last write.
    first: SystemTime,
    last: SystemTime,
    /// What is written.
    written: Option<Event>,
    resting: bool,
    rest: Duration,
}

/// An event, as it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    /// The object's name.
    pub(super) name: String,
    /// What it says.
    pub(super) text: String,
    /// When it happened first.
    pub(super) first: SystemTime,
    /// When it happened last.
    pub(super) last: SystemTime,
    /// How often it has happened.
    pub(super) count: u32,
    /// How often it had when it was written last; none = it is a new one.
    pub(super) again: Option<u32>,
}

impl Series {
    /// It has happened. How much of it is lost, if too many are followed.
    pub(super) fn told(&mut self, notice: Notice, now: SystemTime) -> Option<u32> {
        let Notice { about, matter, text, times } = notice;
        let key = (about, matter);
        if self.0.len() >= MOST && !self.0.contains_key(&key) {
            return Some(times);
        }
        let new = || Slot {
            text: String::new(),
            times: 0,
            first: now,
            last: now,
            written: None,
            resting: false,
            rest: FIRST_REST,
        };
        let slot = self.0.entry(key).or_insert_with(new);
        if slot.times == 0 {
            slot.first = now;
        }
        slot.last = now;
        slot.text = text;
        slot.times = slot.times.saturating_add(times);
        None
    }

    /// One that is to be written. The words of an event do not change: other words are another event.
    pub(super) fn due(&self) -> Option<(Key, Event)> {
        let (key, slot) = self.0.iter().find(|(_, slot)| slot.times > 0 && !slot.resting)?;
        let same = slot.written.as_ref().filter(|written| written.text == slot.text);
        let event = match same {
            Some(written) => Event {
                last: slot.last,
                count: written.count.saturating_add(slot.times),
                again: Some(written.count),
                ..written.clone()
            },
            None => Event {
                name: object::name(&key.0, slot.first),
                text: slot.text.clone(),
                first: slot.first,
                last: slot.last,
                count: slot.times,
                again: None,
            },
        };
        Some((key.clone(), event))
    }

    /// It is written, and rests for so long.
    pub(super) fn written(&mut self, key: &Key, event: Event) -> Duration {
        let Some(slot) = self.0.get_mut(key) else { return FIRST_REST };
        slot.written = Some(event);
        slot.times = 0;
        slot.rest()
    }

    /// It cannot be written, and rests for so long before the next try.
    ///
    /// # Errors
    /// It was tried often enough, and so much of it is lost.
    pub(super) fn refused(&mut self, key: &Key) -> Result<Duration, u32> {
        match self.0.get_mut(key) {
            Some(slot) if slot.rest < LONGEST_REST => Ok(slot.rest()),
            _ => Err(self.0.remove(key).map_or(0, |slot| slot.times)),
        }
    }

    /// The server has forgotten the event: the next one is a new one. Or it has no place for it: so much is lost.
    pub(super) fn gone(&mut self, key: &Key) -> u32 {
        let forgotten = self.0.get_mut(key).is_some_and(|slot| slot.written.take().is_some());
        if forgotten { 0 } else { self.0.remove(key).map_or(0, |slot| slot.times) }
    }

    /// Its rest is over. If nothing has happened meanwhile, that was all.
    pub(super) fn rested(&mut self, key: &Key) {
        if let Some(slot) = self.0.get_mut(key) {
            slot.resting = false;
            if slot.times == 0 {
                self.0.remove(key);
            }
        }
    }
}

impl Slot {
    fn rest(&mut self) -> Duration {
        let now = self.rest;
        self.resting = true;
        self.rest = (now * 2).min(LONGEST_REST);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Kind;

    const SECOND: Duration = Duration::from_secs(1);

    fn subject(name: &str) -> Subject {
        Subject { kind: Kind::Claim, uid: format!("uid-{name}"), namespace: "ns".into(), name: name.into() }
    }

    fn notice(name: &str, text: &str) -> Notice {
        Notice { about: subject(name), matter: Matter::NotPrepared, text: text.into(), times: 1 }
    }

    fn at(seconds: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + seconds * SECOND
    }

    #[test]
    fn what_goes_on_is_one_event_that_is_written_ever_more_rarely() {
        let mut series = Series::default();
        let mut rests = Vec::new();
        let mut names = Vec::new();
        for round in 0..8 {
            for n in 0..10 {
                assert_eq!(series.told(notice("c", "full"), at(round * 100 + n)), None);
                if round > 0 {
                    assert_eq!(series.due(), None, "it rests");
                }
            }
            series.rested(&(subject("c"), Matter::NotPrepared));
            let (key, event) = series.due().unwrap();
            assert_eq!((event.count, event.again), ((round + 1) * 10, (round > 0).then_some(round * 10)));
            assert_eq!((event.first, event.last), (at(0), at(round * 100 + 9)));
            names.push(event.name.clone());
            rests.push(series.written(&key, event).as_secs() / 60);
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 30, 30, 30]);
        names.dedup();
        assert_eq!(names.len(), 1);
        series.rested(&(subject("c"), Matter::NotPrepared));
        assert!(series.0.is_empty(), "nothing more has happened");
    }

    #[test]
    fn other_words_are_another_event_after_the_rest() {
        let mut series = Series::default();
        series.told(notice("c", "2 free"), at(1));
        let (key, first) = series.due().unwrap();
        series.written(&key, first.clone());
        series.told(notice("c", "3 free"), at(2));
        assert_eq!(series.due(), None);
        series.rested(&key);
        let (_, second) = series.due().unwrap();
        assert_ne!(first.name, second.name);
        assert_eq!((second.text.as_str(), second.count, second.again), ("3 free", 1, None));
    }

    #[test]
    fn an_event_that_the_server_has_forgotten_is_made_anew() {
        let mut series = Series::default();
        series.told(notice("c", "full"), at(1));
        let (key, event) = series.due().unwrap();
        series.written(&key, event);
        series.told(notice("c", "full"), at(2));
        series.rested(&key);
        assert_eq!(series.gone(&key), 0);
        assert_eq!(series.due().unwrap().1.again, None);
        assert_eq!(series.gone(&key), 1, "nor has it a place for a new one");
        assert_eq!(series.due(), None);
    }

    #[test]
    fn what_is_refused_is_tried_a_few_times() {
        let mut series = Series::default();
        series.told(notice("c", "full"), at(1));
        series.told(notice("d", "full"), at(1));
        let (key, _) = series.due().unwrap();
        let mut minutes = Vec::new();
        while let Ok(rest) = series.refused(&key) {
            assert_eq!(series.due().unwrap().0, (subject("d"), Matter::NotPrepared), "others go on");
            series.rested(&key);
            minutes.push(rest.as_secs() / 60);
        }
        assert_eq!(minutes, [1, 2, 4, 8, 16]);
        assert_eq!(series.0.len(), 1);
    }

    #[test]
    fn no_more_are_followed_than_there_is_room_for() {
        let mut series = Series::default();
        for n in 0..MOST {
            assert_eq!(series.told(notice(&n.to_string(), "x"), at(1)), None);
        }
        assert_eq!(series.told(notice("one more", "x"), at(1)), Some(1));
        assert_eq!(series.told(notice("7", "x"), at(2)), None);
    }
}
