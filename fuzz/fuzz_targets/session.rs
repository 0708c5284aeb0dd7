//! Sequences of packets, deliveries and completions against the session machine.
//!
//! The harness plays client, engine and store as the contracts allow, in any order and with any
//! outcome, and looks at everything that comes out. At the end all that is owed to the machine is
//! given to it, and it must not be stuck.

#![no_main]

#[path = "session/world.rs"]
mod world;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;

use world::World;

/// One thing that happens.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub enum Event {
    Publish {
        qos: u8,
        id: u8,
        dup: bool,
        topic: u8,
        alias: Option<u8>,
        payload: u8,
    },
    PubRel {
        id: u8,
    },
    PubAck {
        which: u8,
        stray: bool,
    },
    PubRec {
        which: u8,
        stray: bool,
        fails: bool,
    },
    PubComp {
        which: u8,
        stray: bool,
    },
    Subscribe {
        id: u8,
        filters: u8,
        first: u8,
    },
    Unsubscribe {
        id: u8,
        filters: u8,
        first: u8,
    },
    Ping,
    Disconnect {
        with_will: bool,
        expiry: Option<u8>,
    },
    Foreign {
        kind: u8,
    },
    Grant,
    Release {
        which: u8,
        outcome: u8,
    },
    Settled {
        which: u8,
        lost: bool,
    },
    Stored {
        fails: bool,
        full: bool,
    },
    Retained {
        messages: u8,
        qos: u8,
    },
    Marked {
        fails: bool,
    },
    Deliver {
        qos: u8,
        state: u8,
        topic: u8,
        size: u8,
        expires: Option<u8>,
    },
    DeliverQos0 {
        topic: u8,
        size: u8,
    },
    Refresh {
        introspection: u8,
    },
    Tick {
        seconds: u8,
    },
    Drain,
    End,
    Lost,
}

/// How the connection begins.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub struct Opening {
    v5: bool,
    clean_start: bool,
    receive_maximum: Option<u8>,
    packet_max: Option<u8>,
    will: bool,
    small_window: bool,
}

fuzz_target!(|input: (Opening, Vec<Event>)| {
    let (opening, events) = input;
    let mut world = World::new(opening);
    for event in events.into_iter().take(400) {
        world.apply(event);
    }
    world.finish();
});
