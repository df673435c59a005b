//! Sorting and joining for components, each in one form only: the standard library makes a copy of its own of some
//! kilobytes for every type that is sorted, and of one for every kind of text that is joined.

/// The positions (or other numbers) in the order of their keys, the least first; those of equal keys in their own order.
#[must_use]
pub fn ascending(keyed: Vec<(u64, usize)>) -> Vec<usize> {
    sorted(keyed).into_iter().map(|(_, position)| position).collect()
}

/// The same with their keys, in the memory of the list.
#[must_use]
pub fn sorted(mut keyed: Vec<(u64, usize)>) -> Vec<(u64, usize)> {
    keyed.sort_unstable();
    keyed
}

/// Words with this between them.
pub(crate) fn joined(words: &[String], between: &str) -> String {
    let mut joined = String::new();
    for (at, word) in words.iter().enumerate() {
        joined.push_str(if at == 0 { "" } else { between });
        joined.push_str(word);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_decide_and_then_positions() {
        assert_eq!(ascending(vec![(3, 0), (1, 7), (u64::MAX, 2), (1, 3), (0, 9)]), [9, 3, 7, 0, 2]);
        assert_eq!(ascending(vec![(1, 4), (1, 5), (2, 0)]), [4, 5, 0]);
        assert_eq!(ascending(Vec::new()), [0; 0]);
        for count in [20, 21, 1000] {
            let keyed: Vec<(u64, usize)> = (0..count).map(|at| (at as u64 * 7919 % 31, at)).collect();
            let mut sorted = keyed.clone();
            sorted.sort_unstable();
            assert_eq!(ascending(keyed), sorted.into_iter().map(|(_, at)| at).collect::<Vec<_>>());
        }
    }

    #[test]
    fn words_are_joined() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(joined(&words(&["a", "b", "c"]), " and "), "a and b and c");
        assert_eq!(joined(&words(&["a"]), ", "), "a");
        assert_eq!(joined(&[], ", "), "");
    }
}
