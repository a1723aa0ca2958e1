"""Recovery of a training from lost devices, as arithmetic: pure functions on records, without threads, links or clock.

A holding is a set of tensors at a version on a device: live, a snapshot, a backup for another device. Backup,
checkpoint and migration are copies between holdings, and recovery is holdings x new plan -> the newest whole version
(`holdings`) and what must move (`transfers`). The conductor decides: events in, commands out (`conductor`,
`membership`, `state`, `protocol`). Processes only carry out its commands, so that every order of events can be walked
without them.

Not used: a library of state machines (they name states and edges, and leave out what is difficult here, the data that
belong to each), consensus among the devices (only the coordinator decides; what it decided is on its disk).
"""
