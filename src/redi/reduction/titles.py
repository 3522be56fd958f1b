"""The names of reducers in tables and figures. Commands and records use the short names of ``REDUCERS``."""

#: Reducers with a name of their own; others are shown by their short name.
TITLES = {
    "protected": "redi.accelerate",
    "protected-dense": "redi.accelerate, dense",
    "tome-early": "ToMe on our schedule",
    "tome": "ToMe",
    "tofu": "ToFu",
    "pitome": "PiToMe (paper)",
    "pitome-released": "PiToMe (released)",
    "diffrate": "DiffRate",
    "ppt": "PPT",
    "mame": "MaMe",
    "gtp": "GTP-ViT",
    "algm": "ALGM",
    "cubist": "CubistMerge",
    "atm": "ATM",
    "zero-tprune": "Zero-TPrune",
    "bat": "BAT",
    "evit": "EViT",
    "atc": "ATC",
    "token-pooling": "Token Pooling",
    "ats": "ATS",
    "evo-vit": "Evo-ViT",
    "protected-learned": "redi.accelerate, learned relevance",
    "dynamicvit": "DynamicViT, learned",
    "spvit": "SPViT, learned",
    "adavit": "AdaViT, learned",
    "ia-red2": "IA-RED^2, learned",
    "a-vit": "A-ViT, learned",
    "patchmerger": "PatchMerger, learned",
    "tokenlearner": "TokenLearner, learned",
    "patch-slimming": "Patch Slimming, counted",
    "weitop": "WeiToP, learned",
}


def title(reducer: str) -> str:
    """The name of a reducer in a table; a reducer from a user's file keeps its own."""
    return TITLES.get(reducer, reducer)
