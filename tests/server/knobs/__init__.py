"""A row for every field that shows its effect on the demo model, grouped as the fields are.

Whoever adds a field adds a row.
"""

from .answer import ANSWER
from .constraints import CONSTRAINTS
from .decoding import DECODING
from .endings import ENDINGS
from .prompt import PROMPT
from .sampling import SAMPLING

KNOBS = (*PROMPT, *ENDINGS, *SAMPLING, *DECODING, *CONSTRAINTS, *ANSWER)
