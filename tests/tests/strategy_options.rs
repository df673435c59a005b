//! Options of the built-in strategies on a whole node.
