"""One GPU that several processes use: turns, the stream gate, contention, and its facts."""
