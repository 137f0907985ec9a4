"""LoRA: adapters, small additions to a base model's weights, chosen per request.

Four keepers know an adapter. A name becomes weights on the way down this table:

| room          | keeper                | what it keeps              | what makes it forget        |
|---------------|-----------------------|----------------------------|-----------------------------|
| `entrypoints` | `OpenAIServingModels` | names that clients ask for | a client unloads the name   |
| `engine`      | `LoRARegistry`        | ids of all that are read,  | `remove`; or there are more |
|               |                       | in each worker's memory    | than `max_cpu_loras`        |
| `scheduling`  | `LoRASlots`           | the slot of each that may  | another one is given its    |
|               |                       | be in a step, no weights   | slot                        |
| `worker`      | `WorkerLoRAManager`   | weights, in host memory    | the registry and the plan   |
|               |                       | and in slots of the layers | say so: it decides nothing  |
"""

from minivllm.lora.request import LoRARequest

__all__ = ["LoRARequest"]
