"""Five questions on notebook 16: tool calling"""

from minivllm.lab.exercises.quiz.question import Question

QUIZ = [
    Question(
        "A chat answers with tool_calls. Who runs the function?",
        "The client's own program",
        (
            "The model writes a text that asks for it, the server reads that text. The client runs "
            "the function and sends the result back as a message with the role tool."
        ),
        {
            "The model, while it decodes the call": "A model gives logits, nothing else.",
            "The server, between two steps": (
                "It does not have the function: it knows a name and a JSON schema."
            ),
        },
    ),
    Question(
        "How does the model learn which tools there are?",
        "The chat template writes them into the prompt",
        (
            "They are prompt tokens like others: they cost time and memory with each request, and "
            "the prefix cache finds them again."
        ),
        {
            "A grammar tells it what it may write": (
                "A grammar only forbids tokens. Most calls are written without one."
            ),
            "Their names are added to its vocabulary, each as one token": (
                "The vocabulary is fixed when the model is trained."
            ),
        },
    ),
    Question(
        "The stream has shown <tool. Why does the client see nothing of it yet?",
        "It may become <tool_call>, and what is shown cannot be taken back",
        (
            "If something else follows, it comes as content a piece later. The pieces, joined, are "
            "what a parser of the whole text finds."
        ),
        {
            "Special tokens are never shown": (
                "In many models the tag is ordinary text of several tokens."
            ),
            "A parser of calls always waits for the end of the message": (
                "Then nothing would be streamed. It waits only for what may still change."
            ),
        },
    ),
    Question(
        "tool_choice is required and no level or strict is set. What can still be wrong in a call?",
        "The arguments may lack a required key",
        (
            "The grammar holds the form, the tools' names and that the arguments are a JSON "
            "object. Their schema is part of it only under strict or level parameter."
        ),
        {
            "The name may be made up": "The grammar lets only the tools' names pass.",
            "The arguments may be no JSON": (
                "Any JSON object may come, but nothing else, unless max_tokens cuts it."
            ),
        },
    ),
    Question(
        "max_tokens cuts an answer in the middle of a call. What does the client get?",
        "The text as content, and finish_reason length",
        (
            "No part of it is a call. In a stream the name and some arguments may have come "
            "before, but those arguments never become JSON."
        ),
        {
            "A call whose missing braces are added": (
                "Half of an argument may mean something else: /home is not /home/me/old."
            ),
            "An error": "The text is there and has been paid for. It is given to the client.",
        },
    ),
]
