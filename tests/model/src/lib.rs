//! What is true of a node whatever happens to it, as code; and stories that try to make it false.
//!
//! Nothing here is linked with the driver, nor does it ask the driver what is right: the truth follows from what
//! was asked and answered, where containers run, and which files are there.
//!
//! Reading order: [`event`] (what can happen), [`seen`] (what can be seen of it), [`rules`] (what must hold, by
//! name), [`machine`] and [`truth`] (the node as it must be), [`judge`] (each answer, then everything), [`story`],
//! [`wish`] and [`configuration`] (drawn stories), [`simulate`] (played on `dracpu simulate`), [`run`] (seeds, shrinking, the script of a failure).

pub mod configuration;
pub mod event;
pub mod judge;
pub mod machine;
pub mod rules;
pub mod run;
pub mod seen;
pub mod simulate;
pub mod story;
pub mod truth;
pub mod wish;
