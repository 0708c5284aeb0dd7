//! Parses the command line, runs the verb, returns its exit code.

fn main() {}
