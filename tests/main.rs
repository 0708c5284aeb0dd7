//! Behaviour tests, one module a behaviour; linked once.
