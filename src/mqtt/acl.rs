//! The whole access matrix on one screen: who may publish, subscribe to and receive what. Pure.
