//! One MQTT session as a pure state machine: inputs and time in, packets and effects out.
