"""The Runner: the process that compiles and runs one candidate. It is not trusted."""
