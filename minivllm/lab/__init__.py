"""Lab: simulator, figures, benchmarks, the oracle, training of the embedded model.

All of it looks at the engine, which imports none.
"""

import os

if "MINIVLLM_LANG" in os.environ:  # before any other module of it is imported
    from minivllm.lab.translation.importing import set_language_of_environment

    set_language_of_environment()
