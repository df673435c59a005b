//! Machines of every shape: read from sysfs, from descriptions, written, drawn.
#![cfg(test)]

mod captures;
mod descriptions;
mod drawing;
mod properties;
mod scale;
mod support;
mod sysfs;
