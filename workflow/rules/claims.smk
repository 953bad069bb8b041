# The paper's statements with verdicts, from all runs; and what the runs took.
rule claims:
    input:
        runs=[
            f"{folder}/{frame}.parquet"
            for folders in ALL_RUNS.values()
            for folder in folders
            for frame in results.COLUMNS
        ],
        source=[SOURCE / "claims.py", SOURCE / "tables.py", SOURCE / "partition.py"],
    output:
        table=report(
            "<results>/claims.csv",
            caption="../report/claims.rst",
            category="Claims",
            labels={"table": "claims", "shows": "verdicts"},
        ),
        markdown="<results>/claims.md",
    log:
        "<results>/logs/claims.log",
    benchmark:
        "<results>/benchmarks/claims.tsv"
    conda:
        "../../environment.yml"
    params:
        runs=ALL_RUNS,
        changes={
            name: experiment.changes(study)
            for name, study in experiment.loaded_studies.items()
        },
    message:
        "Judging claims."
    script:
        "../scripts/claims.py"


rule cost_of_run:
    input:
        rules.tuned.output if experiment.tune else [],
        rules.tables.output,
        rules.figures.output,
        rules.claims.output,
        runs=[
            f"{folder}/runs.parquet"
            for folders in ALL_RUNS.values()
            for folder in folders
        ],
        source=SOURCE / "results.py",
    output:
        report(
            "<results>/tables/cost_of_run.csv",
            caption="../report/cost_of_run.rst",
            category="Tables",
            labels={"table": "cost of the run", "shows": "time and memory"},
        ),
    log:
        "<results>/logs/cost_of_run.log",
    benchmark:
        "<results>/benchmarks/cost_of_run.tsv"
    conda:
        "../../environment.yml"
    params:
        runs=ALL_RUNS,
    message:
        "Adding up what the parts took."
    script:
        "../scripts/cost_of_run.py"


# The page on the reproduction of the paper, from all that its experiment has made.
rule page:
    input:
        rules.tables.output,
        rules.tuned.output if experiment.tune else [],
        rules.studies.output if experiment.studies else [],
        rules.claims.output,
        rules.cost_of_run.output,
        config="<results>/config.yaml",
        template=HERE / "docs/REPRODUCTION.template.md",
        source=SOURCE / "page.py",
    output:
        "docs/REPRODUCTION.md",
    log:
        "<results>/logs/page.log",
    benchmark:
        "<results>/benchmarks/page.tsv"
    conda:
        "../../environment.yml"
    message:
        "Writing docs/REPRODUCTION.md."
    script:
        "../scripts/page.py"
