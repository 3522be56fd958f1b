"""JPEG encoding of pictures, and many encoded files packed into one tensor."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from redi.images.preprocessing import to_bytes

QUALITY = 85


def to_jpeg(pixels: UInt8[Tensor, "channels height width"]) -> bytes:
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    file = BytesIO()
    image.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def from_jpeg(content: bytes) -> UInt8[Tensor, "channels height width"]:
    with Image.open(BytesIO(content), formats=("JPEG",)) as picture:
        return to_bytes(picture.convert("RGB"))


@dataclass(frozen=True)
class Packed:
    """Many small files in one tensor of bytes, as an artefact stores them."""

    content: UInt8[Tensor, " bytes"]
    offsets: list[int]  # where each file begins, and where the last one ends

    @classmethod
    def read(cls, stored: Mapping[str, Tensor]) -> "Packed":
        return cls(stored["jpegs"], stored["offsets"].tolist())

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> bytes:
        return self.content[self.offsets[number] : self.offsets[number + 1]].numpy().tobytes()


def pack(files: Sequence[bytes]) -> dict[str, Tensor]:
    """Pack files into the tensors that :meth:`Packed.read` reads."""
    content = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)
    return {"jpegs": content, "offsets": torch.tensor([0, *map(len, files)]).cumsum(0)}
