//! Builds the daemon's parts, joins its tasks, drains.
