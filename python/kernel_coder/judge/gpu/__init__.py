"""One GPU that several processes use: turns, the stream gate, whether it is shared now, and facts about it."""
