"""Ranks that compute together. A run with ranks has parts in many rooms, each by its layer:

| question                               | where the answer is                                     |
|----------------------------------------|---------------------------------------------------------|
| How many ranks, and where?             | `config/parallel.py`                                    |
| Which heads, tokens, layers has a rank?| `distributed/shard.py`                                  |
| How do ranks add up, send and receive? | `distributed/`: `Group` and its subclasses              |
| What is a rank's model?                | `models/tensor_parallel.py`: thinner layers             |
|                                        | `models/pipeline_parallel.py`: fewer layers             |
| How does a stage run it?               | `worker/pipeline_stage.py`                              |
| Who starts ranks, and calls them?      | `executor/`: `MultiprocExecutor`, `RayExecutor`,        |
|                                        | `TogetherExecutor` (all in one process, in turns)       |
| What does a rank's process do?         | `executor/rank_process.py`                              |
| Who keeps all stages busy?             | `engine/pipeline.py`, with `scheduling/batch_queue.py`  |
| And several whole models?              | `engine/replicas.py`, `scheduling/load_balancer.py`     |
| Who sees what each rank did?           | `distributed/recorded.py`, `worker/traced_worker.py`    |
"""
