"""The command line. Thin: it parses, calls and prints."""

from __future__ import annotations

import argparse
import codecs
import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from safda import __version__, knobs
from safda.errors import Interrupted, SafdaError, SafdaWarning, nearest
from safda.knobs import Knob
from safda.presets import PRESETS
from safda.recipe import Recipe, load_recipe, walk
from safda.text import printable, to_json

if TYPE_CHECKING:
    from safda.classifier import Adapted
    from safda.exported import OnnxClassifier
    from safda.predictions import Predictions

_FIT = (
    "safda fit SOURCE TARGET -o RUN [--backbone NAME] [--weights FILE] [--fine-tune] [--candidates N] [--no-choice] "
    "[--recipe R] [--adversary NAME] [--no-saf] [--methods A,B] [any knob of the recipe] [options]"
)
_FEATURES = "safda features DATA [-o FILE] [--backbone NAME] [--weights FILE] [any knob of the network]"
_PREDICT = "safda predict RUN DATA [-o FILE] [--probabilities]   or   safda predict RUN picture.jpg [another.jpg …]"
_REPORT = "safda report RUN [RUN …] [-o FILE] [--labels LABELLED] [--pdf FILE] [--png FILE]"
_LABEL = "safda label RUN [--n 50] [-o labels.csv] [--page FILE.html]"
_RECIPE = "safda recipe [PRESET] [any knob of the recipe]"
_TUNE = "safda tune SOURCE TARGET -o FOLDER [--trials N] [--storage URL] [any knob of the recipe] [options]"
_DOMAIN = (
    "a folder of pictures (for a source, a folder for each class), a list or .csv or .parquet of them, a .npz or .npy "
    "file of features, digits-rendered or digits-handwritten"
)
_MOST_SHOWN = 50  # predictions in a terminal: more are for a file
_NEXT_TOO = 3  # classes of a single sample: the most probable and the next two
#: Flag → the knob that it turns, and to what.
_FLAGS = {
    "--no-choice": ("choice.candidates", "0", "train this one recipe, instead of several of which one is taken"),
    "--frozen": ("network.frozen", "true", "no backbone training"),
    "--fine-tune": ("fine_tune.enabled", "true", "adapt with a frozen backbone, then train all of the network"),
}
_GO_ON = ("bench", "demo", "tune")  # commands of many runs, which find what is there
_SHORT = {
    "network.backbone": ["--backbone"],
    "network.weights": ["--weights"],
    "choice.candidates": ["--candidates"],
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 done, 1 an error in one line, 2 usage, 128+n stopped by signal n."""
    sys.stdout, sys.stderr = (stream or io.StringIO() for stream in (sys.stdout, sys.stderr))  # closed ones are None
    _escape_what_cannot_be_shown()
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except ModuleNotFoundError as error:
        if not _lacks_torch(error):
            raise
        _tell("error: torch is not installed here; without it, only 'safda predict FILE.onnx DATA' works")
        return 1


def _lacks_torch(error: Exception) -> bool:
    return isinstance(error, ModuleNotFoundError) and error.name == "torch"


def _run(arguments: list[str]) -> int:
    parser = _parser(next((word for word in arguments if word in _COMMANDS), None))
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        command = parser.commands[options.command]
        flags = [flag for action in command._actions for flag in action.option_strings]
        hint = nearest(unknown[0].split("=")[0], flags) if unknown[0].startswith("-") else ""
        command.error(f"unknown argument {unknown[0]}{hint if 'mean' in hint else '; see --help'}")
    try:
        with _notes():
            code: int = options.run(options)
            sys.stdout.flush()
    except SafdaError as error:
        if options.traceback:
            traceback.print_exc()
        _tell(f"error: {error}")
        return 1
    except Interrupted as stopped:
        if _is_first_process():
            again = (
                "the same command goes on" if options.command in _GO_ON else f"go on with: safda resume {stopped.run}"
            )
            goes_on = f", all saved; {again}" if stopped.run else ""
            _tell(f"stopped by {stopped.signal.name} after step {stopped.step}{goes_on}")
        return 128 + int(stopped.signal)
    except KeyboardInterrupt:
        _tell("stopped")
        return 130
    except BrokenPipeError:  # whoever read our output has gone
        _drop_output()
        return 1
    except OSError as error:
        if options.traceback:
            raise
        _drop_output()
        where = error.filename or "what was to be printed"
        _tell(f"error: {where}: cannot be read or written: {error.strerror or error}")
        return 1
    except Exception as error:
        if options.traceback or _lacks_torch(error):
            raise
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        _tell(f"unexpected error: {what}; --traceback shows where it came from")
        return 1
    return code


# -------------------------------------------------------------------------------------------------- commands


def _fit(options: argparse.Namespace) -> int:
    from safda.api import check_knobs, start
    from safda.data.preflight import preflight

    recipe = _chosen_recipe(options)
    source, target = _both_domains(options, recipe)
    check_knobs(source, _overrides(options))
    if _is_first_process():
        found = preflight(source, target.unlabelled(), recipe.least_batch, recipe.network.features == "centred")
        for line in found.warnings if found.same_shape else ():  # otherwise there is one error to come, and no more
            _tell(f"note: {line}")
    with _view(f"{source.name} → {target.name}", recipe) as view:
        start(
            source,
            target,
            recipe,
            options.out,
            view,
            options.cpu,
            tuple(options.track),
            cache_decoded=options.cache_decoded,
            target_labels=options.labels,
            progress=view.progress,
            verdict=True,
            report=options.report,
        )
    return _report_result(options.out)


def _chosen_recipe(options: argparse.Namespace) -> Recipe:
    from safda.api import default_recipe

    return _turned(load_recipe(options.recipe) if options.recipe else default_recipe(options.source), options)


def _doctor(options: argparse.Namespace) -> int:
    from safda.data.preflight import preflight
    from safda.recipe import preset
    from safda.view import plain, preflight_table

    source, target = _both_domains(options)
    result = preflight(source, target, preset("default").least_batch)
    if options.json:
        print(to_json(result.to_dict()))
        return 0
    console = _console()
    console.print(preflight_table(result.to_dict()))
    for line in result.warnings or ["nothing to complain of"]:
        console.print(plain(f"• {line}"), soft_wrap=True)
    return 0


def _features(options: argparse.Namespace) -> int:
    from safda.extraction import precompute
    from safda.io import refuse_overwriting, require_writable
    from safda.recipe import preset

    if options.out:
        require_writable(options.out, [".npz"])
        refuse_overwriting(options.out, [options.data])
    recipe = _turned(preset("default"), options)
    with _progress_bar("pictures") as progress:
        result: dict[str, Any] = precompute(options.data, recipe, progress, options.out)
    if options.out:
        result["features"] = str(options.out)
    where = f"in {options.out}" if options.out else "at hand"
    skipped = f"; {result['skipped']} files were skipped" if result["skipped"] else ""
    _print_result(
        result, f"features of {result['pictures']} pictures are {where}, {result['computed']} of them new{skipped}"
    )
    return 0


def _both_domains(options: argparse.Namespace, recipe: Recipe | None = None) -> list[Any]:
    """Load source and target; before any picture is opened, make sure that a recipe's backbone can be had."""
    from safda.data import is_image_data, load_domain

    if recipe is not None and is_image_data(options.source):
        from safda.nn.backbones import check_backbone

        check_backbone(recipe.network)
    with _progress_bar("opening pictures") as progress:
        return [
            load_domain(what, strict=options.strict, progress=progress) for what in (options.source, options.target)
        ]


def _resume(options: argparse.Namespace) -> int:
    from safda.api import resume
    from safda.training.checkpoint import RunFolder

    recipe = RunFolder.open(options.out).given_recipe
    with _view(f"resuming {options.out}", recipe) as view:
        resume(
            options.out,
            callback=view,
            cpu=options.cpu,
            trackers=tuple(options.track),
            cache_decoded=options.cache_decoded,
            progress=view.progress,
            report=options.report,
        )
    return _report_result(options.out)


def _predict(options: argparse.Namespace) -> int:
    from safda.io import refuse_overwriting, require_table

    if options.out:
        require_table(options.out)
        own = (options.model / name for name in ("metrics.jsonl", "predictions.csv"))
        refuse_overwriting(options.out, [*options.data, *own])
    data = options.data if len(options.data) > 1 else options.data[0]
    with _progress_bar("samples") as progress:
        predictions = _classifier(options.model).predict(data, progress)
    if not options.out:
        _show(predictions, options.probabilities)
        return 0
    predictions.write(options.out, options.probabilities)
    samples, skipped = len(predictions.ids), dict(predictions.skipped)
    _print_result(
        {"predictions": str(options.out), "samples": samples, "skipped": skipped},
        f"{samples} predictions in {options.out}",
        *(f"skipped {each}: {why}" for each, why in skipped.items()),
    )
    return 0


def _classifier(model: Path) -> Adapted | OnnxClassifier:
    """Load a run or, without torch, an exported model."""
    if model.suffix == ".onnx" and not model.is_dir():
        from safda.exported import OnnxClassifier

        return OnnxClassifier(model)
    if model.suffix == ".pt2" and not model.is_dir():
        raise SafdaError(f"{model}: is for torch.export.load; 'safda predict' takes a run or an .onnx file")
    from safda.classifier import Adapted

    return Adapted.load(model)


def _export(options: argparse.Namespace) -> int:
    from safda.classifier import Adapted
    from safda.export import export, require_exportable

    require_exportable(options.out)
    adapted = Adapted.load(options.model)
    with _progress_bar("exporting") as progress:
        made = export(adapted, options.out, options.data, calibrate=options.calibrate, progress=progress)
    parity, opset = made.parity, f", opset {made.opset}" if made.opset else ""
    _print_result(
        made.to_dict(),
        f"{made.path}: {made.size / 1e6:.1f} MB{opset}, {len(adapted.classes)} classes, temperature "
        f"{made.temperature:.3g}, any number of samples at once",
        f"before the graph: {made.preprocessing}",
        f"compared with torch on {parity.samples} samples ({parity.of}): probabilities differ by "
        f"{parity.max_difference:.1g} at most, {parity.same_answers:.1%} of the answers are the same",
        *([f"next, without torch: safda predict {made.path} DATA"] if made.opset else []),
    )
    return 0


def _show(predictions: Predictions, all_probabilities: bool) -> None:
    """Print predictions: a table in a terminal, lines of JSON anywhere else; what was skipped goes to the errors."""
    from safda.io import json_lines
    from safda.view import predictions_table

    for each, why in predictions.skipped:
        _tell(f"note: skipped {each}: {why}")
    if not sys.stdout.isatty():
        for line in json_lines(predictions.table(all_probabilities)):
            print(line)
        return
    samples = len(predictions.ids)
    classes = len(predictions.classes) if all_probabilities else _NEXT_TOO if samples == 1 else 1
    shown = min(samples, _MOST_SHOWN)
    console = _console()
    console.print(predictions_table(predictions.ids[:shown], predictions.ranked(classes)[:shown]))
    if shown < samples:
        console.print(f"… and {samples - shown} more; -o FILE writes them all", highlight=False)


def _label(options: argparse.Namespace) -> int:
    from safda.evaluation.survey import keep_labels, label_list
    from safda.io import refuse_overwriting, require_writable, write_table

    require_writable(options.out, [".csv"])
    refuse_overwriting(options.out, [options.model / "predictions.csv"])
    if options.page:
        require_writable(options.page, [".html"])
    columns = label_list(options.model, options.n, options.seed)
    if options.out.exists():
        columns = keep_labels(columns, options.out)
    if options.page:
        _write_label_page(options, columns)
    write_table(options.out, columns)
    page = f"; label them in a browser: {options.page}" if options.page else ", for its column 'label'"
    _print_result(
        {
            "labels": str(options.out),
            "samples": len(columns["id"]),
            "page": str(options.page) if options.page else None,
        },
        f"{len(columns['id'])} samples are in {options.out}{page}",
        f"then: safda evaluate {options.model} {options.out}",
    )
    return 0


def _write_label_page(options: argparse.Namespace, columns: dict[str, list[Any]]) -> None:
    from safda.data.labels import sample_rows
    from safda.evaluation.answers import read_answers
    from safda.report.label_page import previews_of, write_label_page
    from safda.training.checkpoint import RunFolder

    run = RunFolder.open(options.model)
    previews: list[dict[str, Any]] = [{} for _ in columns["id"]]
    if run.data["target"]["name"] != "target":  # arrays that were handed over in Python are not to be found again
        rows = sample_rows(columns["id"], read_answers(run).ids, str(options.model))
        with _progress_bar("pictures") as progress:
            previews = previews_of(run.domain("target"), rows, progress)
    write_label_page(options.page, columns, run.data["classes"], previews, options.out.name)


def _evaluate(options: argparse.Namespace) -> int:
    from safda.classifier import Adapted
    from safda.data.labels import is_label_list
    from safda.evaluation.survey import evaluate_labels
    from safda.view import evaluation_table, survey_table

    if is_label_list(options.data):
        result = evaluate_labels(options.model, options.data)
        if options.json or not sys.stdout.isatty():
            print(to_json(result))
        else:
            _console().print(survey_table(result))
            print(printable(result["words"]))
        return 0
    result = Adapted.load(options.model).evaluate(options.data).to_dict()
    if options.json:
        print(to_json(result))
    else:
        _console().print(evaluation_table(result))
    return 0


def _report(options: argparse.Namespace) -> int:
    from safda.report.write import write_report

    figures = [figure for figure in (options.pdf, options.png) if figure]
    with _progress_bar("report") as progress:
        path = write_report(options.runs, options.out, labels=options.labels, figures=figures, progress=progress)
    written = [str(each) for each in (path, *figures)]
    _print_result({"report": str(path), "figures": written[1:]}, f"the report is in {', '.join(written)}")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from safda.demo import demo

    return demo(options.out, options.seeds, options.all, _console())


def _bench(options: argparse.Namespace) -> int:
    from safda.bench.engines import Engine
    from safda.bench.run import bench, judge_claims

    if options.name == "claims":
        print(judge_claims(options.out), end="")
        return 0
    settings = {"preset": options.preset, "steps": options.steps}
    if options.frozen:
        settings["network.frozen"] = True
    return bench(
        options.name,
        options.out,
        data=options.data,
        rows=options.rows.split(",") if options.rows else None,
        seeds=options.seeds,
        settings={key: value for key, value in settings.items() if value is not None},
        engine=Engine(options.engine, options.address, options.jobs, options.threads, options.cpu),
        oracle=options.oracle,
        console=_console(),
        cells=options.cells,
    )


def _tune(options: argparse.Namespace) -> int:
    from safda.api import check_knobs
    from safda.io import refuse_overwriting
    from safda.tuning import tune

    best = options.out / "best.toml"
    refuse_overwriting(best, [options.recipe or ""])
    if _overrides(options).get("choice.candidates"):
        raise SafdaError("tune compares single recipes; leave --candidates out")
    recipe = _chosen_recipe(options).single()
    source, target = _both_domains(options, recipe)
    check_knobs(source, _overrides(options))
    tune(
        source,
        target,
        recipe,
        options.out,
        trials=options.trials,
        score=options.score,
        storage=options.storage,
        log=_tell,
        cpu=options.cpu,
    )
    next_ = f"safda fit {options.source} {options.target} --recipe {best} -o RUN"
    _print_result({"recipe": str(best)}, f"the best recipe, by {options.score}, is in {best}; next: {next_}")
    return 0


def _recipe(options: argparse.Namespace) -> int:
    print(_turned(load_recipe(options.name), options).to_toml(), end="")
    return 0


def _methods(options: argparse.Namespace) -> int:
    from safda.methods import METHODS
    from safda.view import methods_table

    every = [METHODS[name].about() for name in METHODS]
    if sys.stdout.isatty():
        _console().print(methods_table(every))
    else:
        print("\n".join(map(to_json, every)))
    return 0


def _report_result(run: Path) -> int:
    """Print what came of a run and what can be done next."""
    from safda.training.checkpoint import RunFolder
    from safda.view import finding_lines, summary_table

    if not _is_first_process():
        return 0
    folder = RunFolder.open(run)
    summary = folder.summary or {}
    page = run / "report.html"
    report = {"report": str(page)} if page.is_file() else {}
    if sys.stdout.isatty():
        _console().print(summary_table(summary))
    else:
        _tell(summary["words"])
    _print_result(
        {"run": str(run), **(folder.metrics() or [{}])[-1], "summary": summary, **report},  # a saved model has none
        summary["words"],
        *finding_lines(summary),
        f"predictions: {run / 'predictions.csv'}; for other data: safda predict {run} DATA -o FILE",
        *(f"the report, to look at in a browser: {where}" for where in report.values()),
    )
    return 0


# --------------------------------------------------------------------------------------------------- output


def _console() -> Any:
    from rich.console import Console

    return Console()


def _view(title: str, recipe: Recipe) -> Any:
    from safda.view import TrainingView

    return TrainingView(title, recipe.all_steps, _console())


def _progress_bar(title: str) -> Any:
    from rich.console import Console

    from safda.view import ProgressView

    return ProgressView(title, Console(stderr=True))


def _print_result(machine: dict[str, Any], *person: str) -> None:
    """A line or some in a terminal, one line of JSON anywhere else."""
    for line in map(printable, person) if sys.stdout.isatty() else [to_json(machine)]:
        print(line)


def _tell(line: str) -> None:
    """Print a line beside the results: what went wrong, what is to be known, how far it is."""
    with suppress(OSError):  # a terminal that was closed
        print(f"safda: {printable(line)}", file=sys.stderr)


def _drop_output() -> None:
    """Let what is still to be printed go nowhere, or Python would complain of it at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _notes() -> Iterator[None]:
    """Show our own warnings as notes of one line, each once."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", SafdaWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if issubclass(category, SafdaWarning):
                _tell(f"note: {message}")
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        yield


def _escape_what_cannot_be_shown() -> None:
    """Let a terminal or file of another encoding than UTF-8 have ``\\u03bb`` for λ: an escape that JSON knows too."""

    def escaped(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeEncodeError)
        return json.dumps(error.object[error.start : error.end])[1:-1], error.end

    codecs.register_error("safda-escape", escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="safda-escape")


def _is_first_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0  # set by torchrun


# -------------------------------------------------------------------------------------------------- parsing


class _Parser(argparse.ArgumentParser):
    """An argument parser that ends with one line, and knows its commands."""

    commands: dict[str, _Parser]

    def error(self, message: str) -> NoReturn:
        _tell(f"error: {message}")
        raise SystemExit(2)


def _parser(chosen: str | None) -> _Parser:
    """Make the parser: all commands, and the options of the one that is chosen (some would load torch)."""
    parser = _Parser(
        prog="safda",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Adapt a classifier from labelled data (source) to unlabelled data from elsewhere (target).",
        epilog="""examples:
  safda demo                                              see it work, in about three minutes
  safda fit digits-rendered digits-handwritten -o run     embedded digits: preset digits, a small network from scratch
  safda doctor photos/ sketches/                          what is in two domains, and what is wrong with it
  safda fit photos/ sketches/ -o run                      a labelled folder for each class in photos/
  safda fit photos/ sketches/ -o run --backbone tf_efficientnet_lite0 --weights FILE       without the internet
  safda fit photos/ sketches/ -o run --fine-tune          and then the whole network
  safda features photos/ -o photos.npz                    what the backbone makes of each picture, as arrays
  safda fit amazon.npz webcam.npz -o run --adversary cdan --steps 2000
  safda predict run webcam.npz -o predictions.csv
  safda predict run picture.jpg                           one picture, or several: printed
  safda export run -o model.onnx                          take it away: safda predict model.onnx DATA, without torch
  safda evaluate run webcam.npz                           where there are labels to compare with
  safda report run other-run                              one page to look at: maps, curves, samples, differences
  safda label run --n 50 --page label.html                50 samples to label, in a browser
  safda evaluate run labels.csv                           … and what they tell: accuracy, and did adapting help?
  safda fit photos/ sketches/ -o run3 --labels labels.csv                                  learn them too
  safda bench digits -o lab                               DANN, CDAN, MDD, with SAF and without, and its ablations
  safda bench digits-methods -o lab                       every method, with SAF and without

'safda COMMAND --help' tells more of each.""",
    )
    parser.add_argument("--version", action="version", version=f"safda {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for name, (run, add_options, help_, usage) in _COMMANDS.items():
        command = subparsers.add_parser(
            name, help=help_, description=f"{help_[0].upper()}{help_[1:]}.", allow_abbrev=False, usage=usage
        )
        command.set_defaults(run=run)
        command.add_argument("--traceback", action="store_true", help="show where an error came from")
        if name == chosen:
            add_options(command)
    parser.commands = subparsers.choices
    return parser


def _add_fit(fit: argparse.ArgumentParser) -> None:
    fit.add_argument("source", metavar="SOURCE", help=f"labelled: {_DOMAIN}")
    fit.add_argument(
        "target", metavar="TARGET", help="unlabelled, of the same kind; labels it may have are not looked at"
    )
    fit.add_argument("-o", "--out", type=Path, required=True, metavar="RUN", help="a new folder for the run")
    fit.add_argument("--recipe", metavar="R", help=f"a TOML file (see 'safda recipe') or one of {', '.join(PRESETS)}")
    fit.add_argument(
        "--labels", type=Path, metavar="FILE", help="learn these labels of a few target samples too (see 'safda label')"
    )
    _add_strict(fit)
    _add_no_report(fit)
    _add_machine(fit)
    _add_methods(fit)
    _add_knobs(fit)


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("source", metavar="SOURCE", help=f"labelled: {_DOMAIN}")
    doctor.add_argument("target", metavar="TARGET", help="the other one")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    _add_strict(doctor)


def _add_features(features: argparse.ArgumentParser) -> None:
    features.add_argument("data", metavar="DATA", help="pictures: a folder, a list or a manifest")
    features.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="also write them, with labels and paths, as a .npz file"
    )
    _add_knobs(features, only="network")


def _add_resume(resume: argparse.ArgumentParser) -> None:
    resume.add_argument("out", type=Path, metavar="RUN", help="the folder of a run")
    _add_no_report(resume)
    _add_machine(resume)


def _add_predict(predict: argparse.ArgumentParser) -> None:
    predict.add_argument("model", type=Path, metavar="RUN", help="the folder of a finished run, or an exported .onnx")
    predict.add_argument("data", metavar="DATA", nargs="+", help=f"{_DOMAIN}; one picture, or several")
    predict.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="a .csv, .jsonl or .parquet file (default: print them)"
    )
    predict.add_argument("--probabilities", action="store_true", help="also tell the probability of every class")


def _add_export(export: argparse.ArgumentParser) -> None:
    export.add_argument("model", type=Path, metavar="RUN", help="the folder of a finished run")
    export.add_argument(
        "-o",
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help=".onnx, for onnxruntime and 'safda predict FILE' without torch; or .pt2, for torch.export.load",
    )
    export.add_argument(
        "--data",
        metavar="DATA",
        help="compare with torch on samples of this (default: of the run's target, if it is found as it was)",
    )
    export.add_argument(
        "--calibrate",
        metavar="LABELLED",
        help="fit the temperature on samples with labels that training has not seen (default: a temperature of 1)",
    )


def _add_evaluate(evaluate: argparse.ArgumentParser) -> None:
    evaluate.add_argument("model", type=Path, metavar="RUN", help="the folder of a finished run")
    evaluate.add_argument(
        "data", metavar="LABELLED", help=f"{_DOMAIN}; or labels.csv from 'safda label': estimates, with intervals"
    )
    evaluate.add_argument("--json", action="store_true", help="print JSON")


def _add_report(report: argparse.ArgumentParser) -> None:
    report.add_argument(
        "runs",
        type=Path,
        metavar="RUN",
        nargs="+",
        help="the folder of a run that has ended; several stand side by side",
    )
    report.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="a .html file (default: report.html, with --labels report-oracle.html, in RUN; of several runs, here)",
    )
    report.add_argument(
        "--labels", metavar="LABELLED", help=f"compare with labels, for numbers that are an oracle's: {_DOMAIN}"
    )
    report.add_argument("--pdf", type=Path, metavar="FILE", help="also figures for a paper, a page each")
    report.add_argument("--png", type=Path, metavar="FILE", help="the same as one picture")


def _add_no_report(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--no-report",
        dest="report",
        action="store_false",
        help="do not write RUN/report.html, which takes some seconds",
    )


def _add_label(label: argparse.ArgumentParser) -> None:
    label.add_argument("model", type=Path, metavar="RUN", help="the folder of a finished run")
    label.add_argument("--n", type=int, default=50, metavar="N", help="how many samples to draw (default: 50)")
    label.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("labels.csv"),
        metavar="FILE",
        help="the list (default: labels.csv); labels that are in it already are kept",
    )
    label.add_argument("--page", type=Path, metavar="FILE", help="also write a page to label them on, as .html")
    label.add_argument("--seed", type=int, default=0, metavar="N", help="another one draws others (default: 0)")


def _add_demo(demo: argparse.ArgumentParser) -> None:
    demo.add_argument("-o", "--out", type=Path, default=Path("demo"), metavar="FOLDER", help="default: demo")
    demo.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each method (default: 3)")
    demo.add_argument("--all", action="store_true", help="also DANN and CDAN, with and without SAF")


def _add_tune(tune: argparse.ArgumentParser) -> None:
    from safda.evaluation.scores import SCORES

    tune.add_argument("source", metavar="SOURCE", help=f"labelled: {_DOMAIN}")
    tune.add_argument("target", metavar="TARGET", help="unlabelled; labels it may have are not looked at")
    tune.add_argument("-o", "--out", type=Path, required=True, metavar="FOLDER", help="the same one goes on")
    tune.add_argument("--trials", type=int, default=20, metavar="N", help="of the study in all (default: 20)")
    tune.add_argument(
        "--score",
        default="information",
        metavar="NAME",
        help=f"a score without labels: {', '.join(SCORES)} (default: information)",
    )
    tune.add_argument("--storage", metavar="URL", help="a database that many machines share (default: a file)")
    tune.add_argument("--recipe", metavar="R", help="where to start from: a TOML file or a preset")
    _add_strict(tune)
    tune.add_argument("--cpu", action="store_true", help="stay on the CPU even where there is a GPU")
    _add_methods(tune)
    _add_knobs(tune)


def _add_recipe(recipe: argparse.ArgumentParser) -> None:
    recipe.add_argument("name", metavar="PRESET", nargs="?", default="default", help=", ".join(PRESETS))
    _add_methods(recipe)
    _add_knobs(recipe)


def _add_strict(command: argparse.ArgumentParser) -> None:
    command.add_argument("--strict", action="store_true", help="make an error of files that cannot be used")


def _add_bench(bench: argparse.ArgumentParser) -> None:
    from safda.bench.benchmark import shipped

    known = ", ".join(shipped())
    bench.add_argument("name", metavar="NAME", help=f"{known}; a .toml file; or 'claims', to judge what LAB holds")
    bench.add_argument("-o", "--out", type=Path, required=True, metavar="LAB", help="a folder; the same one goes on")
    bench.add_argument("--data", type=Path, metavar="DIR", help="where the benchmark's domains are")
    bench.add_argument("--cells", type=Path, metavar="FILE", help="cells.jsonl of another lab: not run again")
    bench.add_argument("--rows", metavar="A,B", help="the rows to run (default: all that can be run)")
    bench.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each row and task (default: 3)")
    bench.add_argument("--steps", type=int, metavar="N", help="steps of each run, instead of the benchmark's own")
    bench.add_argument("--preset", metavar="R", help="a preset or recipe file, instead of the benchmark's own")
    bench.add_argument("--frozen", action="store_true", help="keep the backbone as it is")
    bench.add_argument("--oracle", action="store_true", help="also tell the best run by target labels, as an oracle's")
    bench.add_argument("--engine", default="local", metavar="NAME", help="local, ray or dask (default: local)")
    bench.add_argument("--address", help="of the Ray or Dask cluster")
    bench.add_argument("--jobs", type=int, metavar="N", help="cells at a time (default: 1; on a cluster, all it takes)")
    bench.add_argument("--threads", type=int, default=1, metavar="N", help="threads of each cell (default: 1)")
    bench.add_argument("--cpu", action="store_true", help="stay on the CPU even where there is a GPU")


def _add_machine(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--cache-decoded", action="store_true", help="keep decoded pictures on disk (some 200 kB each at 224 pixels)"
    )
    command.add_argument("--cpu", action="store_true", help="stay on the CPU even where there is a GPU")
    command.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="NAME",
        help="also log to a tracker that accelerate knows, such as tensorboard",
    )


def _add_methods(command: argparse.ArgumentParser) -> None:
    """Options for which methods take part."""
    from safda.methods import METHODS

    group = command.add_argument_group("methods")
    leads = ", ".join(name for name in METHODS if not METHODS[name].rides)
    group.add_argument("--methods", metavar="A,B", help=f"whose losses add up, of {', '.join(METHODS)}")
    group.add_argument(
        "--adversary", metavar="NAME", help=f"another method to lead, with its own defaults: {leads}; or none"
    )
    group.add_argument("--no-saf", dest="saf", action="store_false", default=None, help="train without SAF")


def _add_knobs(command: argparse.ArgumentParser, only: str | None = None) -> None:
    """One option for each knob of the recipe, or of one section of it, under its path there."""
    groups: dict[str, Any] = {}
    for path, (knob, default) in _knobs().items():
        section = path.rpartition(".")[0]
        if only not in (None, section):
            continue
        if section not in groups:
            groups[section] = command.add_argument_group(f"recipe: {section}" if section else "recipe")
        either = groups[section].add_mutually_exclusive_group()  # a knob, or the flag that turns it
        for flag, (knob_path, value, help_) in _FLAGS.items():
            if knob_path == path:
                either.add_argument(flag, dest=knob_path, action="store_const", const=value, help=help_)
        choices = f" ({', '.join(knob.choices)})" if knob.choices else ""
        either.add_argument(
            *_SHORT.get(path, ()),
            f"--{path.replace('_', '-')}",
            dest=path,
            metavar=type(default).__name__.upper(),
            help=f"{knob.help}{choices}".replace("%", "%%"),
        )


def _knobs() -> dict[str, tuple[Knob, Any]]:
    """All knobs of all methods, by path, with a default to tell their type."""
    from safda.methods import METHODS

    found = {path: (knob, value) for path, knob, value in walk(Recipe(methods=()))}
    for name, method in METHODS.items():
        found.update({path: (knob, value) for path, knob, value in knobs.walk(method.Knobs(), f"{name}.")})
    return found


def _turned(recipe: Recipe, options: argparse.Namespace) -> Recipe:
    """Return a recipe with what was chosen on the command line: first the methods, then any knobs."""
    adversary, saf = getattr(options, "adversary", None), getattr(options, "saf", None)
    if getattr(options, "methods", None) is not None:
        if adversary is not None or saf is not None:
            raise SafdaError("--methods names all that take part: leave --adversary and --no-saf out")
        recipe = recipe.override({"methods": options.methods}, "command line")
    if adversary is not None or saf is not None:
        recipe = recipe.with_adversary(adversary, saf)
    return recipe.override(_overrides(options), "command line")


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    """The knobs that were given on the command line, in their types."""
    given = vars(options)
    types = {path: type(default) for path, (_, default) in _knobs().items()}
    return {path: _value(given[path], kind) for path, kind in types.items() if given.get(path) is not None}


def _value(text: str, kind: type) -> Any:
    """Read a value in a knob's type; what cannot be read is left for the recipe to refuse."""
    try:
        return {"true": True, "false": False}.get(text, text) if kind is bool else kind(text)
    except ValueError:
        return text


#: Name → what it does, what adds its options, its help and, where it has many options, its usage.
_COMMANDS: dict[str, tuple[Any, Any, str, str | None]] = {
    "fit": (_fit, _add_fit, "adapt a classifier; everything goes into a run folder", _FIT),
    "doctor": (_doctor, _add_doctor, "look at two domains: what is odd, broken, far apart or in both", None),
    "features": (_features, _add_features, "compute pictures' features once, for the cache or a file", _FEATURES),
    "resume": (_resume, _add_resume, "go on with a run that was stopped, exactly where it was", None),
    "predict": (_predict, _add_predict, "predict the class of every sample", _PREDICT),
    "export": (_export, _add_export, "write a run as one file for elsewhere: ONNX or torch.export's", None),
    "evaluate": (_evaluate, _add_evaluate, "compare predictions with labels (an oracle's number)", None),
    "report": (_report, _add_report, "write one HTML page on a run, or on several side by side", _REPORT),
    "label": (_label, _add_label, "draw the samples that are worth a label, to learn how good a run is", _LABEL),
    "demo": (_demo, _add_demo, "source only, MDD, MDD+SAF, SAF to the letter: embedded digits, with a picture", None),
    "bench": (_bench, _add_bench, "fill in a table of the paper, or one of your own", None),
    "tune": (_tune, _add_tune, "search for a recipe, scored without target labels", _TUNE),
    "methods": (_methods, lambda command: None, "list the methods: what each is, needs and goes with", None),
    "recipe": (_recipe, _add_recipe, "print a recipe as TOML, every knob with its help", _RECIPE),
}


if __name__ == "__main__":
    sys.exit(main())
