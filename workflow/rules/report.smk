# One HTML file with tables, figures, captions and the code behind them; and the configuration that it is of.
rule report:
    input:
        tables=rules.tables.output,
        figures=rules.figures.output,
        others=[
            rules.studies.output if experiment.studies else [],
            rules.tuned.output if experiment.tune else [],
            rules.claims.output,
        ],
        captions=sorted((HERE / "workflow/report").glob("*.rst")),
    output:
        report="<results>/report.html",
        config="<results>/config.yaml",
    log:
        "<results>/logs/report.log",
    benchmark:
        "<results>/benchmarks/report.tsv"
    conda:
        "../../environment.yml"
    params:
        snakefile=workflow.main_snakefile,
        targets=[
            *["tables", "figures", "claims"],
            *(["studies"] if experiment.studies else []),
            *(["tuned"] if experiment.tune else []),
        ],
    message:
        "Making the report."
    script:
        "../scripts/report.py"
