"""The command that embeds the names of classes."""

from pathlib import Path
from typing import Annotated

import typer

from redi.cli import options
from redi.cli.app import AGAIN, app, echo, interruptible
from redi.cli.options import DATA, METHOD, OUTPUT, option

Model = Annotated[
    str, typer.Argument(help="Hub name or folder of a whole CLIP or SigLIP, with its tokenizer.", metavar="BACKBONE")
]
Train = Annotated[str | None, option(DATA, "Images whose class folders are the classes, as for `redi run`.")]
Templates = Annotated[
    list[str] | None,
    option(METHOD, "A prompt in which {} is the name of a class; repeat for more.", default="7 prompts like CLIP's"),
]
Out = Annotated[Path, option(OUTPUT, "File for the embeddings.", default="text.safetensors")]


@app.command()
def text(
    backbone: Model,
    train: Train = None,
    names: options.Names = None,
    template: Templates = None,
    device: options.Device = None,
    out: Out = Path("text.safetensors"),
) -> None:
    """Embed the names of classes with a text tower, for `redi compare --labels text`.

    A run needs only the image tower then. Examples: `redi text openai/clip-vit-base-patch16 --train imagenet/train
    --names names.tsv`, `redi text models/siglip --names names.txt --template "a photo of a {}." --out text.safetensors`
    """
    from redi.api import text as embed

    with interruptible(AGAIN):
        result = embed(backbone, train, names, out=out, template=template, device=device)
    result.print()
    echo(f"written: {result.file}")
