"""How long the candidate and the reference take, and what is sure about their ratio."""
