# MLflow's database and the experiment in it are made once, before jobs log to them side by side.
rule tracking:
    output:
        touch("<results>/tracking/ready"),
    log:
        "<results>/logs/tracking.log",
    benchmark:
        "<results>/benchmarks/tracking.tsv"
    conda:
        "../../environment.yml"
    message:
        "Preparing MLflow."
    script:
        "../scripts/tracking.py"
