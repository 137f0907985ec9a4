"""Five questions on notebook 10: Triton"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "What does one program of the decode kernel compute?",
        "The query heads that share a KV head",
        "Those of one sequence. So each K and V is read once for the whole group.",
        {
            "One query head of one sequence": (
                "Then each K and V would be read once per head of the group, several times over."
            ),
            "One block of K and V, for all heads": (
                "Its softmax would be over one block only. Split-KV does that with ranges, and "
                "then has to merge."
            ),
        },
    ),
    Question(
        "The online softmax meets a score larger than all before it. What must it do?",
        "Shrink what it has summed so far",
        "By exp(old maximum - new maximum), since it was taken relative to the old one.",
        {
            "Begin again with the first tile": (
                "Nothing is lost: one factor mends all that was summed."
            ),
            "Nothing: the maximum only prevents overflow": (
                "All terms must be relative to the same maximum, or they do not add up."
            ),
        },
    ),
    Question(
        "How does a Triton program know which K and V to read?",
        "It loads block ids from the block table",
        "It computes the addresses from them; no host code gathers anything for it.",
        {
            "The host passes one pointer per block": (
                "Thousands of pointers would have to be made in every step. The table is there "
                "already."
            ),
            "It need not: K and V lie in a row": ("They do not; that is the point of the kernel."),
        },
    ),
    Question(
        "Why are loads masked at the end of a sequence?",
        "The last tile reaches past the written slots",
        (
            "What is there may be anything. A masked load reads nothing and gives a value that "
            "does no harm."
        ),
        {
            "To save the bandwidth of the last tile": (
                "It does save some, but a missing mask gives wrong answers, not only slow ones."
            ),
            "Because Triton needs powers of two everywhere": (
                "The shapes of tiles do. That is why tiles overhang, and masks are needed."
            ),
        },
    ),
    Question(
        "TRITON_INTERPRET=1 runs the kernels on a CPU. What can it tell you?",
        "Whether the kernel computes the right numbers",
        "The programs run one after the other as NumPy.",
        {
            "How fast the kernel is": "Its time has nothing to do with a GPU's.",
            "Whether the kernel compiles for a GPU": (
                "Nothing is compiled. What the interpreter accepts, the compiler may refuse."
            ),
        },
    ),
]
