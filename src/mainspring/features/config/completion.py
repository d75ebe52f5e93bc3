"""`mainspring completion`: commands and options completed by the shell."""

from typing import Annotated, Final, Literal

import typer
from typer._completion_shared import get_completion_script

VARIABLE: Final = "_MAINSPRING_COMPLETE"


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """
    Prints what makes a shell complete our commands and options. Put it where the shell reads it at its start:

        mainspring completion bash >> ~/.bashrc
        mainspring completion zsh > "${fpath[1]}/_mainspring"
        mainspring completion fish > ~/.config/fish/completions/mainspring.fish
    """
    print(get_completion_script(prog_name="mainspring", complete_var=VARIABLE, shell=shell))
