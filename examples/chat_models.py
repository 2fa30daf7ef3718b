"""Tandem as the model of LangChain and of LlamaIndex, in this process and without HTTP.

Run it: python examples/chat_models.py
LlamaIndex needs the extra [llamaindex].
"""

from tandem import Tandem

QUESTION = "When was the lighthouse on Vey built?"


# --8<-- [start:langchain]
def ask_langchain(tandem: Tandem) -> None:
    """A chain: a prompt, both parties, and the text of their answer."""
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate

    from tandem.plugins.clients.langchain import ChatTandem

    chat = ChatTandem(tandem=tandem, seed=7, options={"num_documents": {"device": 2}})
    prompt = ChatPromptTemplate.from_messages([("user", "When was {place} built?")])
    print("LangChain:", (prompt | chat | StrOutputParser()).invoke({"place": "the lighthouse on Vey"}))
    for source in chat.invoke(QUESTION).response_metadata["tandem"]["sources"][:1]:
        print("  read:", source["party"], source["title"])


# --8<-- [end:langchain]


# --8<-- [start:llamaindex]
def ask_llama_index(tandem: Tandem) -> None:
    """A stream, and what is known of the answer at its end."""
    from tandem.plugins.clients.llamaindex import TandemLLM

    llm = TandemLLM(tandem=tandem, seed=7)
    print("LlamaIndex:", end=" ")
    for response in llm.stream_complete(QUESTION):
        print(response.delta, end="", flush=True)
    print("\n  accepted:", ", ".join(response.raw["tandem"]["acceptance"]))


# --8<-- [end:llamaindex]


def main() -> None:
    """The same two parties for both."""
    with Tandem.launch(runtime="inline") as tandem:
        ask_langchain(tandem)
        ask_llama_index(tandem)


if __name__ == "__main__":
    main()
