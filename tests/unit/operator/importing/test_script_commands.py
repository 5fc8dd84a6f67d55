"""Selection and expansion of the command that runs verl's trainer in a script."""

import pytest

from raggrpo_operator.core.importing.overrides import UnknownValue, Unreadable
from raggrpo_operator.core.importing.script import Script, read_script

RUN = "python3 -m verl.trainer.main_ppo "


@pytest.mark.parametrize(
    "program",
    [
        "python3 -m verl.trainer.main_ppo",
        "torchrun -m recipe.dapo.main_dapo",
        "python -u -m verl.experimental.fully_async_policy.fully_async_main",
        "python recipe/one_step_off_policy/async_main_ppo.py",
        "ray job submit --address=http://x -- python3 verl/trainer/main_ppo.py",
        'nohup "$PYTHON" -m $ENTRY',
    ],
)
def test_trainer_command_is_selected_among_several_commands(program: str) -> None:
    script = read_script(
        "ENTRY=verl.trainer.main_ppo\n"
        "python3 -m verl.trainer.main_generation data.path=/x data.seed=5\n"
        "torchrun -m verl.trainer.fsdp_sft_trainer trainer.total_epochs=3 optim.lr=1e-5\n"
        "pkill -f verl.trainer.main_ppo\n"
        f"{program} data.seed=1 2>&1 | tee log.$(date +%s)\n"
        "python3 -m verl.trainer.main_eval data.path=/y\n"
    )
    assert script == Script(overrides={"data.seed": 1})


def test_custom_launcher_is_used_when_trainer_command_is_missing() -> None:
    script = read_script("bash sft_trainer.sh data.seed=1\n./launch.sh data.seed=2")
    assert script.overrides == {"data.seed": 2}


def test_launcher_name_is_not_read_as_argument() -> None:
    assert read_script("$LAUNCH data.seed=2") == Script(overrides={"data.seed": 2})
    script = read_script("data.seed=1\n./launch.sh data.seed=2")
    assert script.overrides == {"data.seed": 2}
    assert len(script.missing) == 1


def test_additional_trainer_run_is_reported() -> None:
    script = read_script(f"\\\n{RUN} \\\ndata.seed=1\n\n{RUN} data.seed=2 \\\n data.x=3\n")
    assert script.overrides == {"data.seed": 1}
    assert script.missing == [
        "another run of verl in line 5: a job is one run, here that of line 2; "
        "import the other one from a separate script"
    ]


def test_script_with_only_sft_trainer_is_rejected() -> None:
    with pytest.raises(Unreadable, match="verl's main_ppo"):
        read_script("torchrun -m verl.trainer.fsdp_sft_trainer trainer.total_epochs=3 data.x=1")


@pytest.mark.parametrize(
    "script",
    [
        f'COMMON="data.a=1 data.b=/x"\n{RUN} $COMMON data.c=2',
        f"ARGS=(data.a=1 data.b=/x)\n{RUN} ${{ARGS[@]}} data.c=2",
        f'ARGS=(\n  data.a=1  # it\'s one\n\n  "data.b=/x"\n)\n{RUN} "${{ARGS[@]}}" data.c=2',
        f'ARGS=(data.a=1)\nARGS+=( data.b="/x" )\n{RUN} "${{ARGS[@]}}" data.c=2',
        f'A="data.a=1"\nA+=" data.b=/x"\nB="$A data.c=2"\n{RUN} $B',
        f'CMD="{RUN} data.a=1"\n$CMD data.b=/x data.c=2 "$@"',
        f'train() {{\n  {RUN} data.a=1 data.b=/x data.c=2 "$@"\n}}\ntrain',
        f'A="data.a=1 data.b="\nB="/x data.c"\n{RUN} $A$B=2',
        f'ADDS=""\n{RUN} $ADDS data.a=1 data.b=/x data.c=2 ${{@:2}} $*',
    ],
)
def test_variables_and_arrays_in_arguments_are_expanded(script: str) -> None:
    assert read_script(script) == Script(overrides={"data.a": 1, "data.b": "/x", "data.c": 2})


def test_array_expansion_supports_index_and_join_forms() -> None:
    script = read_script(
        f"A=(/x /y)\nB=(/z)\n{RUN} data.first=$A data.second=${{A[1]}} "
        'data.all="${A[*]}" data.only=${B[@]}'
    )
    values = {"first": "/x", "second": "/y", "all": "/x /y", "only": "/z"}
    assert script == Script(overrides={f"data.{name}": each for name, each in values.items()})


def test_array_without_index_expands_to_first_element() -> None:
    script = read_script(f"A=(data.a=1 data.b=2)\nC=data.c=3\n{RUN} ${{A}} ${{C[@]}}")
    assert script == Script(overrides={"data.a": 1, "data.c": 3})


def test_process_substitution_is_reported_as_unknown() -> None:
    script = read_script(f"{RUN} data.a=1 <(sort ')' a) data.b=2")
    assert script.overrides == {"data.a": 1, "data.b": 2}
    [line] = script.missing
    assert "sort ')' a" in line
    assert line.endswith("is the output of a command")


def test_case_pattern_is_not_read_as_command() -> None:
    script = read_script(f"case $1 in\n data.x=5 | data.x=6) echo;; esac\n{RUN} data.a=1")
    assert script == Script(overrides={"data.a": 1})


def test_unexpandable_arguments_are_reported() -> None:
    script = read_script(f"MORE=\nif x; then MORE=some.sh; fi\n{RUN} data.b=2 $COMMON $MORE")
    assert script.overrides == {"data.b": 2}
    assert script.missing == [
        "$COMMON in verl's command: $COMMON is not set in the script",
        "$MORE in verl's command: $MORE is empty or some.sh, depending on how the script runs",
    ]


def test_array_element_appended_in_branch_is_unknown() -> None:
    script = read_script(
        "ARGS=(data.a=1 data.b=2)\nif x; then ARGS+=(data.b=3); fi\n" + RUN + '"${ARGS[@]}"'
    )
    assert script.overrides["data.a"] == 1
    assert script.overrides["data.b"] == UnknownValue(
        "3", "data.b=3 may be in $ARGS; specified before as 2"
    )


def test_argument_that_differs_between_branches_is_unknown() -> None:
    script = read_script(
        'A="\n data.a=1 \\\n data.b=2"\n'
        'if x; then A="$A data.c=3"; else A="$A data.c=4"; fi\n' + RUN + "$A"
    )
    assert (script.overrides["data.a"], script.overrides["data.b"]) == (1, 2)
    unknown = script.overrides["data.c"]
    assert isinstance(unknown, UnknownValue)
    assert "data.c=4 may be in $A" in unknown.reason
    assert "specified before as 3" in unknown.reason
    assert script.missing == []


def test_option_with_unset_variable_is_reported() -> None:
    script = read_script(f"{RUN} --config-name=$NAME data.a=1")
    assert (script.options, script.overrides) == ({}, {"data.a": 1})
    assert script.missing == ["--config-name=$NAME: $NAME is not set in the script"]


def test_arguments_after_comment_line_are_reported_as_outside_command() -> None:
    script = read_script(f"{RUN} data.a=1 \\\n  # data.b=2 \\\n  data.c=3 \\\n  data.d=4\n")
    assert script.overrides == {"data.a": 1}
    [line] = script.missing
    assert line == "data.c=3 in line 3 is not part of verl's command, which ends before it"


@pytest.mark.parametrize(
    "before",
    [
        "# it's a comment\n",
        "cat <<EOF > x.yaml\nit's ${A and \"more\nEOF\n",
        "cat 0<< 'EOF' 2> x\nit's\nEOF\n",
        "cat <<-'END'\n\tdon't\n\tEND\n",
        "cat <<A <<\"B\"\nit's\nA\nit's\nB\n",
        "python - <<'EOF' | tee log\nprint('a\\'s')\nEOF\n",
        "x=a#b's'  # isn't\n",
        "cat <<<\"it's\" # don't\n",
        'echo "it\'s $(basename "$0") ${X:-"it"}" \\\n  more\n',
        "if [[ $A =~ ^(a|b)$ && -n $B ]]; then echo; fi\n",
        "(( N > 1 )) && echo it\\'s\n",
        "for ((i=0; i<3; i++)); do echo $i; done\n",
        'D=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)\n',
        "diff <(sort a) <(sort b) 2>/dev/null >&2 &> x\n",
        "echo a\r\n",
        "echo \0007\0\n",
    ],
)
def test_shell_code_before_command_is_ignored(before: str) -> None:
    assert read_script(f"{before}{RUN} data.a=1") == Script(overrides={"data.a": 1})


@pytest.mark.parametrize(
    "after",
    [
        "  # it's a comment",
        " > logs/seed=1.txt",
        " \\\n",
        "\ncat <<EOF\nit's without end",
        '\necho "$(echo \')\' ")" it\\\'s \\))"',
    ],
)
def test_words_after_command_end_are_not_read_as_arguments(after: str) -> None:
    assert read_script(f"{RUN} data.a=1{after}") == Script(overrides={"data.a": 1})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("echo 'a\n", 1),
        ("\necho 'a\n", 2),
        ('echo\necho "a\n', 2),
        ("echo $(a\n", 1),
        ("echo ${a\n", 1),
    ],
)
def test_unclosed_quote_is_reported_with_line(text: str, line: int) -> None:
    with pytest.raises(Unreadable, match=f"line {line}: a quote or bracket is not closed"):
        read_script(text + RUN + "data.a=1")


def test_loop_over_single_word_sets_variable() -> None:
    script = read_script(f"for N in 7; do\n{RUN} data.a=$N\ndone\n")
    assert script == Script(overrides={"data.a": 7})


@pytest.mark.parametrize(
    "script",
    [
        # Each branch starts with a copy of all variables.
        "\n".join([*[f"A{i}=" for i in range(1000)], "case x in", *["a) ;;"] * 1000]),
        # After the branches, each variable is compared with its value in each of them.
        "\n".join(["case x in", *[f"a) A{i}=1 ;;" for i in range(1000)], "esac"]),
    ],
    ids=["copies", "comparisons"],
)
def test_variables_of_branches_are_limited(script: str) -> None:
    with pytest.raises(Unreadable, match="expand to more than"):
        read_script(script)


def test_empty_variable_expands_to_nothing_and_empty_quotes_to_empty_word() -> None:
    script = read_script(f"E=\nfor N in $E 7; do\n{RUN} data.a=$N\ndone\n")
    assert script == Script(overrides={"data.a": 7})
    script = read_script(f'for N in "" 7; do\n{RUN} data.a=$N\ndone\n')
    assert isinstance(script.overrides["data.a"], UnknownValue)


def test_array_in_subshell_does_not_close_subshell() -> None:
    script = read_script(f"(\nN=7\nA=(1 2)\n{RUN} data.a=$N\n)\n")
    assert script == Script(overrides={"data.a": 7})


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("N=1\nif (grep x y); then N=2; fi\n", "1 or 2"),
        ("if x; then N=1; else (echo); N=2; fi\n", "1 or 2"),
        ("N=1\nwhile x; do case $1 in a) N=2;; b) N=3;; esac; done\n", "1, 2 or 3"),
        ("if x; then N=1; else case $1 in a) N=2;; *) N=3;; esac; fi\n", "1, 2 or 3"),
        ("N=(1 2)\nN[0]=5\n", "an element of $N is set separately"),
        ("declare N[0]=5\n", "an element of $N is set separately"),
    ],
)
def test_values_computed_at_script_runtime_are_unknown(before: str, why: str) -> None:
    unknown = read_script(f"{before}{RUN} data.a=$N").overrides["data.a"]
    assert isinstance(unknown, UnknownValue)
    assert why in unknown.reason


@pytest.mark.parametrize(
    "before",
    ["N=1\nif x; then (N=2); fi\n", "N=1\nf() { echo; }\n", "N=1\nif x; then f() { echo; }; fi\n"],
)
def test_subshell_and_function_do_not_change_variables(before: str) -> None:
    assert read_script(f"{before}{RUN} data.a=$N") == Script(overrides={"data.a": 1})
