"""One small file for each library that people train or evaluate with. None is imported before it is used.

========== ============================================================================================
trl        rewards on verdicts, rollouts of several turns, tools, and a trainer with our fused loss
verl       ``compute_score`` over the HTTP service, and an exporter of data sets
verifiers  a taskset with rewards, for one turn and for several
openenv    an environment and its server
skyrl      a text environment of SkyRL-gym
mcp        a server with the tools ``judge`` and ``search_kernels`` for coding agents
========== ============================================================================================

A failure of the judge never gives the reward 0; each file says what happens instead with its library.
"""
