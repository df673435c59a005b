//! The clocks of a process of its own, moved by a test: that of the day either way, and the one that only goes forward,
//! as after a sleep of the whole machine.

use anyhow::Result;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use tempfile::NamedTempFile;

/// Clocks of processes that are started with [`envs`](Self::envs). Static binaries keep the machine's.
#[derive(Debug)]
pub struct ProcessClock {
    file: NamedTempFile,
    day: i64,
    forward: i64,
}

impl ProcessClock {
    /// Clocks that say what the machine's do.
    ///
    /// # Errors
    /// When there is no room for a temporary file.
    pub fn new() -> Result<Self> {
        let clock = Self { file: NamedTempFile::new()?, day: 0, forward: 0 };
        clock.set(clock.file.as_file())?;
        Ok(clock)
    }

    /// Environment variables of the processes.
    #[must_use]
    pub fn envs(&self) -> Vec<(String, String)> {
        let library = concat!(env!("OUT_DIR"), "/process_clock.so").to_owned();
        let file = self.file.path().display().to_string();
        vec![("LD_PRELOAD".to_owned(), library), ("DRACPU_TEST_CLOCK".to_owned(), file)]
    }

    /// The time of day jumps by so many seconds, the other clocks by so many forward.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn jump(&mut self, day: i64, forward: u64) -> Result<()> {
        self.day += day;
        self.forward += i64::try_from(forward)?;
        self.set(self.file.as_file())
    }

    fn set(&self, file: &File) -> Result<()> {
        let numbers = [self.day, self.forward].map(i64::to_ne_bytes).concat();
        Ok(file.write_all_at(&numbers, 0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, SystemTime, UNIX_EPOCH};

    #[test]
    fn a_process_sees_the_time_of_day_that_it_is_told() -> Result<()> {
        let mut clock = ProcessClock::new()?;
        clock.jump(-7200, 0)?;
        clock.jump(3600, 0)?;
        let told = Command::new("date").arg("+%s").envs(clock.envs()).output()?;
        let told = UNIX_EPOCH + Duration::from_secs(String::from_utf8(told.stdout)?.trim().parse()?);
        let behind = SystemTime::now().duration_since(told)?;
        assert!((3600..3700).contains(&behind.as_secs()), "{behind:?}");
        Ok(())
    }
}
