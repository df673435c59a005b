use crate::{CpuSet, MAX_CPU_ID};
use std::fmt;
use std::str::FromStr;

/// Why a CPU list was refused. Says the cause only; the caller adds which file or field it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuListError {
    /// A field is not a number, or one above the limit.
    #[error("`{0}` is not a CPU id between 0 and {MAX_CPU_ID}")]
    NotACpu(String),
    /// A range ends below its start.
    #[error("range {first}-{last} runs backwards")]
    Backwards {
        /// The range's first CPU as written.
        first: u32,
        /// The range's last CPU as written.
        last: u32,
    },
    /// The part behind `:` is not `USED/STEP` with `1 <= USED <= STEP`.
    #[error("`{0}` is not a stride: write USED/STEP, as in 0-46:1/2")]
    NotAStride(String),
}

impl FromStr for CpuSet {
    type Err = CpuListError;

    /// Parses the kernel's list format: `0-3,8`, also with strides, `0-46:1/2` (of every 2 CPUs the
    /// first). Blank text is the empty set: sysfs prints one for "none offline". Blanks around the text
    /// and around fields do not matter; an empty field between commas is an error.
    ///
    /// # Errors
    /// [`CpuListError`] for the first bad field; the good ones before it are not returned.
    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let mut cpus = Self::new();
        let text = text.trim();
        if text.is_empty() {
            return Ok(cpus);
        }
        for field in text.split(',') {
            let field = field.trim();
            let (range, stride) = match field.split_once(':') {
                Some((range, stride)) => (range, Some(stride)),
                None => (field, None),
            };
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (cpu_id(first, field)?, cpu_id(last, field)?);
            if last < first {
                return Err(CpuListError::Backwards { first, last });
            }
            match stride {
                // Others' lists may name the whole range again and again: not CPU by CPU, nor stride by stride.
                None => cpus.insert_range(first, last),
                Some(stride) => {
                    let (used, step) = parse_stride(stride, field)?;
                    cpus.insert_strided(first, last, used, step);
                }
            }
        }
        Ok(cpus)
    }
}

fn cpu_id(text: &str, field: &str) -> Result<u32, CpuListError> {
    number(text)
        .filter(|id| *id <= MAX_CPU_ID)
        .ok_or_else(|| CpuListError::NotACpu(quoted(if text.is_empty() { field } else { text })))
}

fn parse_stride(text: &str, field: &str) -> Result<(u32, u32), CpuListError> {
    text.split_once('/')
        .and_then(|(used, step)| Some((number(used)?, number(step)?)))
        .filter(|(used, step)| (1..=*step).contains(used))
        .ok_or_else(|| CpuListError::NotAStride(quoted(field)))
}

/// A field for an error: its beginning and `…` where it is longer than a person reads.
fn quoted(field: &str) -> String {
    match field.char_indices().nth(100) {
        Some((end, _)) => format!("{}…", field.get(..end).unwrap_or_default()),
        None => field.to_owned(),
    }
}

/// Digits only: `u32::from_str` would take a sign.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for CpuSet {
    /// The kernel's list format: ascending, comma separated, runs as `a-b` (also runs of two).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for run in runs(self) {
            write!(f, "{separator}{}", run_text(run))?;
            separator = ",";
        }
        Ok(())
    }
}

/// Displays a set in the kernel's list format with strided ranges where they are shorter:
/// `0-46:1/2` for the even CPUs up to 46. Parses back to the same set.
#[derive(Debug, Clone, Copy)]
pub struct StridedList<'a>(pub &'a CpuSet);

impl fmt::Display for StridedList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = runs(self.0);
        let mut rest = runs.as_slice();
        let mut separator = "";
        while let Some((&(first, last), tail)) = rest.split_first() {
            f.write_str(separator)?;
            separator = ",";
            // Runs of the same width at the same distance can be one strided range.
            let width = last - first + 1;
            let step = tail.first().map_or(0, |next| next.0 - first);
            let same = rest
                .iter()
                .zip(0u32..)
                .take_while(|(run, i)| run.0 == first + i * step && run.1 - run.0 + 1 == width)
                .count();
            let (alike, others) = rest.split_at(same);
            let plain = alike.iter().map(|run| run_text(*run)).collect::<Vec<_>>().join(",");
            let end = alike.last().map_or(last, |run| run.1);
            let strided = format!("{first}-{end}:{width}/{step}");
            if strided.len() < plain.len() {
                f.write_str(&strided)?;
                rest = others;
            } else {
                f.write_str(&run_text((first, last)))?;
                rest = tail;
            }
        }
        Ok(())
    }
}

fn run_text((first, last): (u32, u32)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Maximal runs of consecutive CPUs, as (first, last).
fn runs(set: &CpuSet) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for cpu in set {
        match runs.last_mut() {
            Some(run) if run.1 + 1 == cpu => run.1 = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<CpuSet, CpuListError> {
        text.parse()
    }

    #[test]
    fn kernel_lists_parse() {
        let cases: [(&str, &[u32]); 8] = [
            ("", &[]),
            ("\n", &[]),
            ("0", &[0]),
            ("0-3,8\n", &[0, 1, 2, 3, 8]),
            (" 1 , 2 ", &[1, 2]),
            ("0-6:1/2", &[0, 2, 4, 6]),
            ("0-9:2/4", &[0, 1, 4, 5, 8, 9]),
            ("8191", &[8191]),
        ];
        for (text, cpus) in cases {
            assert_eq!(parse(text), Ok(cpus.iter().copied().collect()), "{text:?}");
        }
    }

    #[test]
    fn bad_lists_are_refused_with_the_field() {
        let not_a_cpu = |text: &str| Err(CpuListError::NotACpu(text.to_owned()));
        assert_eq!(parse("1,x"), not_a_cpu("x"));
        assert_eq!(parse("0-8192"), not_a_cpu("8192"));
        assert_eq!(parse("99999999999999999999"), not_a_cpu("99999999999999999999"));
        assert_eq!(parse("+1"), not_a_cpu("+1"));
        assert_eq!(parse("-1"), not_a_cpu("-1"));
        assert_eq!(parse("5-"), not_a_cpu("5-"));
        assert_eq!(parse("1,,2"), not_a_cpu(""));
        assert_eq!(parse("3-1"), Err(CpuListError::Backwards { first: 3, last: 1 }));
        for stride in ["0-9:0/2", "0-9:3/2", "0-9:1", "0-9:1/0", "0-9:a/b"] {
            assert_eq!(parse(stride), Err(CpuListError::NotAStride(stride.to_owned())));
        }
    }

    #[test]
    fn strided_lists_are_short() {
        let even: CpuSet = (0..=190).step_by(2).collect();
        assert_eq!(StridedList(&even).to_string(), "0-190:1/2");
        let blocks: CpuSet = (0..256).filter(|cpu| cpu % 16 < 4).collect();
        assert_eq!(StridedList(&blocks).to_string(), "0-243:4/16");
        assert_eq!(StridedList(&CpuSet::from([0, 1, 2, 3, 8])).to_string(), "0-3,8");
    }

    #[test]
    fn ranges_end_at_any_bit() {
        for first in [0, 1, 62, 63, 64, 65, 127, 128] {
            for last in [0, 1, 62, 63, 64, 65, 127, 128, 191, 192, 8191] {
                if first <= last {
                    let cpus: CpuSet = (first..=last).collect();
                    assert_eq!(parse(&format!("{first}-{last}")), Ok(cpus), "{first}-{last}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_strided_range_is_every_stride_of_it(
            first in prop_oneof![0..200u32, 0..=MAX_CPU_ID],
            length in prop_oneof![0..200u32, 0..=MAX_CPU_ID],
            step in prop_oneof![1..70u32, 1..9000u32, Just(u32::MAX)],
            used in 1..70u32,
        ) {
            let (last, used) = (first.saturating_add(length).min(MAX_CPU_ID), used.min(step));
            let expected: CpuSet = (first..=last).filter(|cpu| (cpu - first) % step < used).collect();
            prop_assert_eq!(parse(&format!("{first}-{last}:{used}/{step}")), Ok(expected));
        }

        #[test]
        fn lists_round_trip(cpus in proptest::collection::btree_set(prop_oneof![0..100u32, 0..=MAX_CPU_ID], 0..200)) {
            let set: CpuSet = cpus.iter().copied().collect();
            prop_assert_eq!(parse(&set.to_string()), Ok(set.clone()));
            let strided = StridedList(&set).to_string();
            prop_assert!(strided.len() <= set.to_string().len());
            prop_assert_eq!(parse(&strided), Ok(set));
        }

        #[test]
        fn no_text_panics(text in "[0-9,:/ x-]{0,24}") {
            let _ = parse(&text);
        }
    }
}
