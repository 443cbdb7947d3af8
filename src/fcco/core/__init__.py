"""What a step is, as pure functions of arrays: no modules, no state, no messages, no processes."""
