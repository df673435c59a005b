//! The short form of fuzzing: every target on its corpus, and on inputs made of it. The same inputs at every run.
//! One test, since what a check allocates is counted for the whole process.

use dracpu_fuzz::{TARGETS, Target};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Inputs made for each target.
const MADE: u64 = 2000;

/// The longest input made.
const LONGEST: usize = 200_000;

#[test]
fn every_target_holds_on_its_corpus_and_on_inputs_made_of_it() {
    for target in TARGETS {
        let seeds = corpus(target);
        assert!(!seeds.is_empty(), "{} has no corpus", target.name);
        for (path, seed) in &seeds {
            check(target, seed, &path.display().to_string());
        }
        let seeds: Vec<Vec<u8>> = seeds.into_iter().map(|(_, seed)| seed).collect();
        for number in 0..MADE {
            let input = made(&seeds, target.words, number);
            check(target, &input, &format!("input {number}"));
        }
    }
}

fn check(target: &Target, input: &[u8], which: &str) {
    let outcome = catch_unwind(AssertUnwindSafe(|| target.run(input)));
    assert!(
        outcome.is_ok(),
        "{}, {which}: {:?}",
        target.name,
        String::from_utf8_lossy(&input[..input.len().min(2000)])
    );
}

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(&dir).expect("a corpus").map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// The input of this number: a seed, changed in a few places.
fn made(seeds: &[Vec<u8>], words: &[&str], number: u64) -> Vec<u8> {
    let mut numbers = Numbers(number);
    let mut input = numbers.one_of(seeds).clone();
    for _ in 0..=numbers.below(6) {
        let at = numbers.below(input.len() + 1);
        let to = (at + 1 + numbers.below(12)).min(input.len());
        match numbers.below(7) {
            0 if at < input.len() => input[at] ^= 1 << numbers.below(8),
            1 => drop(input.drain(at..to)),
            2 => drop(input.splice(at..at, input[at..to].to_vec())),
            3 if !words.is_empty() => drop(input.splice(at..at, numbers.one_of(words).bytes())),
            4 => {
                let other = numbers.one_of(seeds);
                let from = numbers.below(other.len() + 1);
                drop(input.splice(at.., other[from..].iter().copied()));
            }
            // What is long must not become longer still.
            5 if numbers.below(16) == 0 => {
                let again = input[at..to].repeat(LONGEST / 12);
                drop(input.splice(at..at, again));
            }
            _ => {
                let bytes: Vec<u8> = (0..numbers.below(9)).map(|_| numbers.byte()).collect();
                drop(input.splice(at..to, bytes));
            }
        }
    }
    input.truncate(LONGEST);
    input
}

/// `SplitMix64` (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// A number below this one, which is not 0.
    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).expect("it is below a usize")
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}
