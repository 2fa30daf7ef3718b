"""Chat templates that take tools, each written in the style of a family of models."""

from __future__ import annotations

HERMES = (  # as Qwen 2.5 and Hermes have it: tools in the system message, results within a user's turn
    "{% set system = messages[0]['content'] if messages[0]['role'] == 'system' else 'You are a helpful assistant.' %}"
    "<|im_start|>system\n{{ system }}"
    "{% if tools %}\n\n# Tools\n\nCall one or more functions to help with the question.\n\n<tools>"
    "{% for tool in tools %}{{ '\n' + tool | tojson }}{% endfor %}{{ '\n' }}</tools>\n\n"
    'For each call write <tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>{% endif %}<|im_end|>\n'
    "{% for message in messages %}"
    "{% if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% elif message.role == 'assistant' %}"
    "<|im_start|>assistant{{ '\n' + message.content if message.content }}"
    "{% for call in message.tool_calls %}{% set call = call.function %}{{ '\n<tool_call>\n' }}"
    '{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n'
    "{% elif message.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' + message.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (  # as Llama 3.1 has it: tools in the first question, a call is all of an answer
    "{% set has_system = messages[0]['role'] == 'system' %}"
    "<|im_start|>system\n{{ messages[0]['content'] | trim if has_system else '' }}<|im_end|>"
    "{% set turns = messages[1:] if has_system else messages %}"
    "{% for message in turns %}"
    "{% if message.tool_calls %}{% if message.tool_calls | length != 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    "{% set call = message.tool_calls[0].function %}<|im_start|>assistant\n"
    '{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|im_end|>'
    "{% elif message.role == 'tool' %}<|im_start|>ipython\n"
    "{% if message.content is mapping or message.content is iterable %}{{ message.content | tojson }}"
    "{% else %}{{ message.content }}{% endif %}<|im_end|>"
    "{% else %}<|im_start|>{{ message.role }}\n"
    "{% if loop.first and tools %}Answer with a JSON for a function call if one helps.\n\n"
    "{% for tool in tools %}{{ tool | tojson(indent=4) }}\n\n{% endfor %}{% endif %}"
    "{{ message.content | trim }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MISTRAL = (  # as Mistral has it: tools before the last question
    "{% for message in messages %}{% if message.role == 'user' %}"
    "{% if tools and loop.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ message.content }}[/INST]"
    "{% elif message.tool_calls %}[TOOL_CALLS] [{% for call in message.tool_calls %}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}'
    "{% endfor %}]<|im_end|>"
    "{% elif message.role == 'tool' %}[TOOL_RESULTS] {{ message.content }}[/TOOL_RESULTS]"
    "{% else %}{{ message.content }}<|im_end|>{% endif %}{% endfor %}"
)
BLIND = (  # knows tools, and has no form for their calls
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if loop.first and tools %}{{ tools | tojson }}"
    "{% endif %}{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
