"""How replicas share the streams. In: what the group assigns, the claims on the control topic, the
clock. Out: which streams this replica may claim and write, when its writers end, and warm copies of
the others. It must not know how a stream is watched, nor how the process starts and ends."""
