use crate::mqtt::packet::Packet;
pub(super) fn normalise(packet: &mut Packet) {
    match packet {
        Packet::Publish(it) => {
            if it.properties.message_expiry == Some(0) {
                it.properties.message_expiry = Some(1);
            }
        }
        Packet::Connect(it) => {
            if let Some(will) = &mut it.will {
                if will.properties.message_expiry == Some(0) {
                    will.properties.message_expiry = Some(1);
                }
            }
        }
        _ => {}
    }
}
