"""Push: commands go from Pulsar to devices over MQTT, in order, with a receipt for each.

Concepts, one name each:

- *position*: where a command is in its partition's log; a device gets it with a tag (``bridge.contract.tagged_positions``).
- *command*: a message for one device; ``command`` tracks it from its arrival to its receipt.
- *device*: queue, cursor and parked commands of one name (``device``).
- *mode*: whether a device is LIVE, PARKED or REPLAYING (``states``).
- *delivery*: what is sent, and its confirmation by broker or device (``delivery``).
- *link*: the connection to one of the MQTT brokers, which are the links of ingest (``brokers``, ``broker_link``, ``links``).
- *place*: the broker where a device was last seen, and gets its commands (``places``).
- *flight*: a push that the MQTT broker has not confirmed (``flights``).
- *parking*, *replay*: commands of an offline device wait in Pulsar, and come first when it is online (``parking``, ``replay``).
- *action*: what the core asks the shell to do (``actions``, ``effects``).
- *cursor*: up to which position a device's commands are settled (``cursor``, ``cursor_log``).
- *segment*: stored ids of parked commands (``segments``, ``segment_log``).
- *receipt*: the final state of a command, for its writer (``settlement``, ``bridge.pulsar.batch_writer``).
- *retention*: up to where Pulsar may trim (``retention``, ``bridge.pulsar.compaction``).
- *owner*: the one process that pushes a partition's commands (``supervisor``, ``connection``, ``ownership``, ``owner``).
- *share*: what a process owns or would own of the partitions that all push processes divide (``bridge.protocols.sharing``).
- *presence*: signs of life and of absence (``probes``).
- *resume*: a device asks for all that comes after a position (``resume``, ``resume_answers``, ``request_log``).
- *group entry*: a command of a group, as an index into the group's log (``groups``).
- *relocation*: commands that are parked for long move to a topic of their own (``retention``).

The core decides and has no socket, thread or clock: ``partition`` routes events over components that each own their state.
The shell has them: while ``SharingInstance`` wants a partition here, its ``supervisor`` runs one session after another. In a session
a standby waits for the ownership over its ``connection``, and becomes an ``owner``, which hands events to the core and begins
its actions.
"""
